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
  return page;
};
// What a page says of itself.
const look = () => ({
  ids: [...document.querySelectorAll("[id]")].map((element) => element.id),
  links: [...document.querySelectorAll("a[href], link[href]")].map((element) => element.href),
  mute: [...document.images].filter((image) => !image.alt.trim()).map((image) => image.src),
});

// Not the theme's parts, nor the page that leads on to the front page.
const pages = readdirSync(job.site, { recursive: true })
  .filter((name) => name.endsWith(".html") && !name.startsWith("_static/") && name !== "index.html");
const seen = {};
const queue = [...pages];
const one = async () => {
  for (let name; (name = queue.shift()); ) {
    const page = await open(name, { viewport: { width: WIDTHS[0], height: 800 } });
    await page.evaluate(() => document.querySelectorAll("details").forEach((details) => (details.open = true)));
    seen[name] = await page.evaluate(look);
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    if (width > WIDTHS[0]) report(name, `is ${width} pixels wide in a window of ${WIDTHS[0]}`);
    await page.context().close();
  }
};
await Promise.all([one(), one()]);

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

for (const name of job.examined) {
  for (const [width, colorScheme] of [[WIDTHS[0], "dark"], [WIDTHS[1], "light"]]) {
    const page = await open(name, { viewport: { width, height: 1000 }, colorScheme });
    await page.evaluate(() => document.querySelectorAll("details").forEach((details) => (details.open = true)));
    await page.addScriptTag({ path: axe });
    const { violations } = await page.evaluate(() => window.axe.run({ rules: { "empty-table-header": { enabled: false } } }));  // a formula counts as empty there
    for (const { id, help, nodes } of violations) {
      report(name, `${width} pixels, ${colorScheme}: ${help} (${id}): ${nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" … ")}`);
    }
    await page.context().close();
  }
}
await browser.close();
console.log(`${pages.length} pages, ${faults} faults`);
process.exit(faults ? 1 : 0);
