"""What lesson 50 goes on with, made from notebooks/50_pipelines.ipynb: see this package."""

def ring_of(room, tile, copy, product, latency):
    D = min(room // tile, -(-(latency + product) // max(copy, product)))
    share = product / max(copy, product, (latency + product) / D)
    return D, share


def ring_step(tile, i, steps, STAGES):
    n = tile * steps + i
    slot = n % STAGES
    loads = (n // STAGES + 1) % 2
    multiplies = n // STAGES % 2
    return slot, loads, multiplies
