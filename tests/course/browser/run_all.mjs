// Opens a notebook in JupyterLab, clears its outputs, runs all its cells from the menu, waits for them, and takes
// pictures. Prints, as JSON, what every code cell then holds, and what is wrong with what is seen of each cell.
// Usage: node run_all.mjs JOB, which lab.py writes:
// { executablePath, url, run, width: of the window, screenshot: path or null, pages: { theme: beginning of the paths } }
import { createRequire } from "node:module";

const job = JSON.parse(process.argv[2]);
const { chromium } = createRequire(process.env.PLAYWRIGHT_FROM + "/")("playwright-core");
const browser = await chromium.launch({
  executablePath: job.executablePath,
  args: [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
  ],
});
try {
  const page = await browser.newPage({ viewport: { width: job.width, height: job.screenshot ? 2200 : 1600 } });
  page.setDefaultTimeout(60_000);
  await page.goto(job.url);
  await page.locator(".jp-NotebookPanel:visible .jp-Cell").first().waitFor();

  // Cells outside the viewport are not in the page, so the notebook's model is asked, not the page.
  const cells = () =>
    page.evaluate(() => {
      const { model } = window.jupyterapp.shell.currentWidget.content;
      return Array.from(model.cells, (cell) => cell.toJSON())
        .filter((cell) => cell.cell_type === "code" && String(cell.source).trim())
        .map(({ id, metadata, execution_count, outputs }) => ({ id, metadata, execution_count, outputs }));
    });
  const kernelIs = (status) =>
    page.waitForFunction(
      (wanted) => window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === wanted,
      status,
    );
  const choose = async (menu, item) => {
    await page.getByRole("menuitem", { name: menu, exact: true }).click();
    await page.getByRole("menuitem", { name: item }).click();
  };
  const scrollTo = (y) =>
    page.evaluate((top) => {
      const panel = window.jupyterapp.shell.currentWidget.content.node;
      const outer = panel.querySelector(".jp-WindowedPanel-outer") ?? panel;
      outer.scrollTo(0, top);
      const last = Array.from(panel.querySelectorAll(".jp-Cell")).at(-1).getBoundingClientRect().bottom;
      const end = last - outer.getBoundingClientRect().top + outer.scrollTop;  // below it one can scroll on, to nothing
      return { top: outer.scrollTop, seen: outer.clientHeight, all: Math.min(outer.scrollHeight, end) };
    }, y);

  await kernelIs("idle");
  if (job.run) {
    await choose("Edit", /^Clear Outputs of All Cells/);
    if ((await cells()).some((cell) => cell.outputs.length)) throw new Error("the stored outputs were not cleared");
    await choose("Run", /^Run All Cells/);
    const end = Date.now() + 240_000;
    // JupyterLab runs no further after an error, unless the cell is tagged for one.
    const raised = (cell) =>
      cell.outputs.some((output) => output.output_type === "error") && !cell.metadata.tags?.includes("raises-exception");
    for (let now = await cells(); now.some((cell) => cell.execution_count === null); now = await cells()) {
      if (now.some(raised)) break;
      if (Date.now() > end) throw new Error("the cells did not all run within four minutes");
      await page.waitForTimeout(200);
    }
    await kernelIs("idle");
  }
  await page.evaluate(() => window.jupyterapp.commands.execute("application:toggle-left-area"));
  await scrollTo(0);
  await page.waitForTimeout(1000);  // figures and formulas take a moment to be drawn
  for (const words of ["Validate", "official Jupyter news"])
    if (await page.locator(".jp-Toolbar, .Notification-List").getByText(words).count()) throw new Error(`JupyterLab shows what the course leaves out: ${words}`);
  if (job.screenshot) await page.screenshot({ path: job.screenshot });
  for (const [theme, beginning] of Object.entries(job.pages)) {
    await page.evaluate((name) => window.jupyterapp.commands.execute("apputils:change-theme", { theme: name }), theme);
    await page.waitForTimeout(2000);
    const panel = page.locator(".jp-NotebookPanel-notebook:visible");
    for (let number = 1, y = 0; ; number++) {
      const { top, seen, all } = await scrollTo(y);
      await page.waitForTimeout(400);
      await panel.screenshot({ path: `${beginning}_${String(number).padStart(2, "0")}.png` });
      if (top + seen >= all - 2) break;
      y = top + seen - 60;  // a line or two twice, so that none is cut
    }
  }
  // Figures without a text, and how many pixels of a cell lie beyond its right edge.
  const faults = await page.evaluate(() => {
    const { model, node } = window.jupyterapp.shell.currentWidget.content;
    const shown = ".jp-RenderedMarkdown, .jp-OutputArea-output";
    return [...node.querySelectorAll(".jp-Cell")].map((cell, place) => ({
      id: model.cells.get(place).id,
      mute: [...cell.querySelectorAll("img")].filter(({ alt }) => alt.length < 40).length,
      excess: Math.max(0, ...[...cell.querySelectorAll(shown)].map((element) => element.scrollWidth - element.clientWidth)),
    }));
  });
  console.log(JSON.stringify({ cells: await cells(), faults }));
} finally {
  await browser.close();
}
