"""How many programs a multiprocessor has room for, by NVIDIA's own occupancy header: ``python -m benchmarks.rooms``.

The header comes with Triton and needs a C++ compiler and no GPU. Lesson 03 holds its box against what is recorded here.
"""

import datetime
import itertools
import re
import subprocess
import tempfile
from pathlib import Path

import triton

from benchmarks import harness

INCLUDE = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
WARPS, REGISTERS, SHARED = (1, 2, 4, 8, 16), range(16, 256, 8), (0, 16_384, 49_152, 102_400)
PROGRAM = r"""
#include <cstdio>
#include <cstddef>
#include <cstdint>
#include "cuda_occupancy.h"

int main() {
  cudaOccDeviceProp device;  // an H200
  device.computeMajor = 9; device.computeMinor = 0;
  device.maxThreadsPerBlock = 1024; device.maxThreadsPerMultiprocessor = 2048;
  device.regsPerBlock = 65536; device.regsPerMultiprocessor = 65536; device.warpSize = 32;
  device.sharedMemPerBlock = 49152; device.sharedMemPerMultiprocessor = 233472;
  device.numSms = 132; device.sharedMemPerBlockOptin = 232448; device.reservedSharedMemPerBlock = 1024;
  cudaOccDeviceState state;
  int warps, registers, shared;
  while (std::scanf("%d %d %d", &warps, &registers, &shared) == 3) {
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = 1024; kernel.numRegs = registers; kernel.sharedSizeBytes = 0;
    kernel.partitionedGCConfig = PARTITIONED_GC_OFF; kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    kernel.maxDynamicSharedSizeBytes = 232448; kernel.numBlockBarriers = 1; kernel.virtualResourceCount = 0;
    cudaOccResult result;
    cudaOccError error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, 32 * warps, shared);
    std::printf("%d\n", error ? -1 : result.activeBlocksPerMultiprocessor);
  }
}
"""


def rooms(cases: list[tuple[int, int, int]]) -> list[int]:
    """Programs a multiprocessor of an H200 for each (warps, registers of a thread, bytes of shared memory)."""
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder) / "rooms.cpp", Path(folder) / "rooms"
        source.write_text(PROGRAM)
        subprocess.run(["g++", "-w", f"-I{INCLUDE}", source, "-o", binary], check=True)
        asked = "\n".join(" ".join(map(str, case)) for case in cases)
        given = subprocess.run([binary], input=asked, capture_output=True, text=True, check=True)
    return [int(line) for line in given.stdout.split()]


def main():
    cases = list(itertools.product(WARPS, REGISTERS, SHARED))
    version = int(re.search(r"define CUDA_VERSION (\d+)", (INCLUDE / "cuda.h").read_text())[1])
    record = {
        "source": f"NVIDIA's cuda_occupancy.h, CUDA {version // 1000}.{version % 1000 // 10}, compute capability 9.0",
        "date": datetime.date.today().isoformat(),
        "rows": [[*case, found] for case, found in zip(cases, rooms(cases), strict=True)],
    }
    path = harness.RESULTS / "rooms.json"
    path.write_text(harness.text_of(record))
    print(f"{len(cases)} rows in {path}")


if __name__ == "__main__":
    main()
