// Opens a notebook in JupyterLab, clears its outputs, runs all its cells from the menu, waits for them, and takes a
// screenshot. Prints, as JSON, what every code cell then holds. Usage: node run_all.mjs CHROMIUM URL SCREENSHOT
import { createRequire } from "node:module";

const [executablePath, url, screenshot] = process.argv.slice(2);
const { chromium } = createRequire(process.env.PLAYWRIGHT_FROM + "/")("playwright-core");
const browser = await chromium.launch({
  executablePath,
  args: [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
  ],
});
try {
  const page = await browser.newPage({ viewport: { width: 1400, height: 2200 } });
  page.setDefaultTimeout(60_000);
  await page.goto(url);
  await page.locator(".jp-Notebook .jp-Cell").first().waitFor();

  // Cells outside the viewport are not in the page, so the notebook's model is asked, not the page.
  const cells = () =>
    page.evaluate(() => {
      const { model } = window.jupyterapp.shell.currentWidget.content;
      return Array.from(model.cells, (cell) => cell.toJSON())
        .filter((cell) => cell.cell_type === "code" && String(cell.source).trim())
        .map(({ id, execution_count, outputs }) => ({ id, execution_count, outputs }));
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

  await kernelIs("idle");
  await choose("Edit", /^Clear Outputs of All Cells/);
  if ((await cells()).some((cell) => cell.outputs.length)) throw new Error("the stored outputs were not cleared");
  await choose("Run", /^Run All Cells/);
  const end = Date.now() + 120_000;
  const raised = (cell) => cell.outputs.some((output) => output.output_type === "error"); // JupyterLab runs no further
  for (let now = await cells(); now.some((cell) => cell.execution_count === null); now = await cells()) {
    if (now.some(raised)) break;
    if (Date.now() > end) throw new Error("the cells did not all run within two minutes");
    await page.waitForTimeout(200);
  }
  await kernelIs("idle");
  await page.evaluate(() => window.jupyterapp.commands.execute("application:toggle-left-area"));
  await page.evaluate(() => window.jupyterapp.shell.currentWidget.content.node.querySelector(".jp-WindowedPanel-outer")?.scrollTo(0, 0));
  await page.waitForTimeout(1000);  // figures and formulas take a moment to be drawn
  await page.screenshot({ path: screenshot });
  console.log(JSON.stringify(await cells()));
} finally {
  await browser.close();
}
