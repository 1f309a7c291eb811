// Opens every page of a site in Chromium, as files, and prints what is wrong with it; exits with 1 if anything is.
// Usage: node check_book.mjs JOB, which book.py writes: { site, examined: [page], executablePath }
import { existsSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath, pathToFileURL } from "node:url";

const job = JSON.parse(process.argv[2]);
const require = createRequire(process.env.NODE_FOLDER + "/");
const { chromium } = require("playwright-core");
const axe = require.resolve("axe-core/axe.min.js");
const WIDTHS = [320, 1280];
let faults = 0;
const report = (page, fault) => (faults++, console.log(`${page}: ${fault}`));

const browser = await chromium.launch({ executablePath: job.executablePath, args: ["--headless", "--no-sandbox", "--disable-gpu"] });
const open = async (name, options) => {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.on("request", (request) => /^(file|data|blob):/.test(request.url()) || report(name, `fetches ${request.url()}`));
  page.on("pageerror", (error) => report(name, `a script fails: ${error.message}`));
  await page.goto(pathToFileURL(`${job.site}/${name}`).href);
  await page.evaluate(() => document.querySelectorAll("details").forEach((details) => (details.open = true)));
  return page;
};
// Two at a time.
const each = async (jobs, work) => {
  const left = [...jobs];
  const some = async () => {
    for (let one; (one = left.shift()); ) await work(one);
  };
  await Promise.all([some(), some()]);
};
// What a page says of itself. Sphinx gives a picture without a text the name of its file.
const look = () => ({
  ids: [...document.querySelectorAll("[id]")].map((element) => element.id),
  links: [...document.querySelectorAll("a[href], link[href]")].map((element) => element.href),
  mute: [...document.images].filter(({ alt, src }) => src.endsWith(alt.trim().split("/").pop())).map(({ src }) => src),
});
// Links and buttons of which a part is not seen.
const cut = () =>
  [...document.querySelectorAll("a, button")]
    .filter((one) => getComputedStyle(one).overflowX !== "visible" && one.scrollWidth > one.clientWidth)
    .map((one) => one.textContent.replace(/\s+/g, " ").trim());

// Not the theme's parts, nor the page that leads on to the front page.
const pages = readdirSync(job.site, { recursive: true })
  .filter((name) => name.endsWith(".html") && !name.startsWith("_static/") && name !== "index.html");
const seen = {};
await each(pages, async (name) => {
  const page = await open(name, { viewport: { width: WIDTHS[0], height: 800 } });
  seen[name] = await page.evaluate(look);
  const width = await page.evaluate(() => document.documentElement.scrollWidth);
  if (width > WIDTHS[0]) report(name, `is ${width} pixels wide in a window of ${WIDTHS[0]}`);
  for (const link of await page.evaluate(cut)) report(name, `a link is cut off: ${link}`);
  await page.context().close();
});

for (const [name, { ids, links, mute }] of Object.entries(seen)) {
  for (const id of new Set(ids.filter((id, place) => ids.indexOf(id) !== place))) report(name, `two elements have the id ${id}`);
  for (const image of mute) report(name, `no text for ${image}`);
  for (const link of new Set(links.filter((link) => link.startsWith("file:")))) {
    const [place, fragment] = link.split("#");
    const path = fileURLToPath(place.split("?")[0]);
    if (!existsSync(path)) report(name, `a dead link, ${path}`);
    const there = seen[path.slice(job.site.length + 1)];
    if (fragment && there && !there.ids.includes(decodeURIComponent(fragment))) report(name, `a dead link, ${path}#${fragment}`);
  }
}

const views = [[WIDTHS[0], "dark"], [WIDTHS[1], "light"]];
await each(job.examined.flatMap((name) => views.map((view) => [name, ...view])), async ([name, width, colorScheme]) => {
  const page = await open(name, { viewport: { width, height: 1000 }, colorScheme });
  await page.addScriptTag({ path: axe });
  // Where a page has a button to search with, one can type behind it.
  const search = page.getByRole("button", { name: "Search" }).first();
  if (await search.isVisible()) {
    await search.click();
    if (!(await page.locator("input[type=search]:focus").count())) report(name, `${width} pixels: the button Search opens nothing`);
    await page.keyboard.press("Escape");
  }
  // An empty header is no fault here: axe takes one that is a formula for empty.
  const { violations } = await page.evaluate(() => window.axe.run({ rules: { "empty-table-header": { enabled: false }, "target-size": { enabled: true } } }));
  for (const { id, help, nodes } of violations) {
    const elements = nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" … ");
    report(name, `${width} pixels, ${colorScheme}: ${help} (${id}): ${elements}`);
  }
  await page.context().close();
});
await browser.close();
console.log(`${pages.length} pages, ${faults} faults`);
process.exit(faults ? 1 : 0);
