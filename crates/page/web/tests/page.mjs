// SPDX-License-Identifier: GPL-2.0-only
// Opens pages from disk in Chromium, and acts as a reader would. Arguments: the folder with the
// page's packages, a small page, a large page. `crates/page/tests/browser.rs` makes the pages.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";

const [, , web, small, large] = process.argv;
const require = createRequire(path.join(web, "package.json"));
const { chromium } = require("playwright-core");
const { AxeBuilder } = require("@axe-core/playwright");

// As `task_at` of browser.rs.
const STEP = 1000;
const taskAt = (cpu, interval) => (interval % 4 === 0 ? null : `task-${(cpu * 3 + (interval % 3)) % 24}`);

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox"],
});

/** Opens a page, and fails on a request, an error of the page, or a line in the console. */
async function open(file, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 900 }, ...options });
  const page = await context.newPage();
  page.on("console", (line) => assert.fail(`console: ${line.text()}`));
  page.on("pageerror", (error) => assert.fail(`${error.stack}`));
  page.on("request", (request) => {
    if (!request.url().startsWith("file:")) assert.fail(`request: ${request.url()}`);
  });
  page.on("dialog", () => assert.fail("a name was run as a program"));
  const start = performance.now();
  await page.goto(`file://${file}`);
  await page.waitForSelector(".timeline .chart[data-ready]");
  return { page, context, opened: performance.now() - start };
}

/** Returns a function that gives the text shown at a part of the width, and a CPU. */
async function pointer(page) {
  await page.locator(".timeline .chart").scrollIntoViewIfNeeded();
  return async (part, cpu, cpus) => {
    const box = await page.locator(".timeline .u-over").boundingBox();
    await page.mouse.move(box.x + 1, box.y + 1);
    await page.mouse.move(box.x + box.width * part, box.y + (box.height * (cpu + 0.5)) / cpus);
    await page.waitForTimeout(50);
    const tip = page.locator(".tip");
    return (await tip.isVisible()) ? await tip.innerText() : null;
  };
}

async function shot(page) {
  if (process.env.SHOT) await page.screenshot({ path: process.env.SHOT, fullPage: true });
}

{
  const { page, context } = await open(small);
  await shot(page);
  assert.equal(await page.locator("h1").innerText(), "A page <of> tests");
  assert.match(await page.locator(".verdict").innerText(), /^Take <script>alert\(1\)<\/script>: throughput/);
  for (const title of ["Advice", "Published and predicted", "Comparison", "Runs that do not count", "Wake-up latency", "Who ran where", "Migrations and nodes", "Shares against weights", "Setup"]) {
    assert.equal(await page.getByRole("heading", { name: title, exact: true }).count(), 1, title);
  }

  // A click on a heading sorts, a second one the other way round.
  const names = () => page.locator("table:has-text('Candidates') tbody th").allInnerTexts();
  const heading = page.locator("table:has-text('Candidates') thead").getByRole("button", { name: "Gain" });
  assert.deepEqual(await names(), ["o1", "vtime"]);
  await heading.click();
  assert.deepEqual(await names(), ["vtime", "o1"]);
  await heading.click();
  assert.deepEqual(await names(), ["o1", "vtime"]);

  // The pointer shows the task that ran there, before and after zooming and panning.
  const shown = await pointer(page);
  const end = 39 * STEP;
  let seen = 0;
  for (let cpu = 0; cpu < 8; cpu++) {
    for (const interval of [1, 4, 7, 18, 30]) {
      const text = await shown(((interval + 0.5) * STEP) / end, cpu, 8);
      const task = taskAt(cpu, interval);
      assert.equal(text?.split(/\s/)[0] ?? null, task, `CPU ${cpu}, interval ${interval}: ${text}`);
      if (task) seen++;
    }
  }
  assert.ok(seen > 20);
  const place = ((18 + 0.5) * STEP) / end;
  await shown(place, 3, 8);
  for (let i = 0; i < 6; i++) await page.mouse.wheel(0, -100);
  await page.waitForTimeout(100);
  assert.equal((await shown(place, 3, 8)).split(/\s/)[0], taskAt(3, 18), "zoomed about the pointer");
  // Now the span is 0.8^6 of the run; an interval later lies this far to the right.
  const span = end * 0.8 ** 6;
  assert.equal((await shown(place + STEP / span, 3, 8)).split(/\s/)[0], taskAt(3, 19), "zoomed in");
  const box = await page.locator(".timeline .u-over").boundingBox();
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * (place + STEP / span) - (box.width * STEP) / span, box.y + 5, { steps: 4 });
  await page.mouse.up();
  assert.equal((await shown(place, 3, 8)).split(/\s/)[0], taskAt(3, 19), "dragged by an interval");
  await page.getByRole("button", { name: "Whole run" }).click();
  await page.waitForTimeout(100);
  assert.equal((await shown(place, 3, 8)).split(/\s/)[0], taskAt(3, 18), "whole again");
  // From the keyboard.
  await page.locator(".timeline .chart").focus();
  for (const key of ["+", "+", "ArrowRight", "-"]) await page.keyboard.press(key);

  // The last moments of a run that was ejected.
  await page.getByRole("button", { name: "Show the last moments in the timeline" }).click();
  await page.waitForSelector(".timeline .chart[data-ready='o1']");
  assert.equal(await page.locator(".timeline select").first().inputValue(), "1");

  // Another run, and charts of other metrics.
  await page.locator(".timeline select").first().selectOption({ index: 0 });
  await page.waitForSelector(".timeline .chart[data-ready='eevdf']");
  await page.getByRole("button", { name: "wake-up latency p99" }).first().click();
  await page.getByLabel("Metrics").selectOption({ label: "all" });
  await context.close();
}

for (const colorScheme of ["light", "dark"]) {
  const { page, context } = await open(small, { colorScheme });
  const back = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  assert.equal(back === "rgb(255, 255, 255)", colorScheme === "light", back);
  const { violations } = await new AxeBuilder({ page }).analyze();
  const found = violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join("\n")}`);
  assert.deepEqual(found, [], colorScheme);
  // The choice on the page overrides the system's.
  await page.getByLabel("Colours").selectOption({ label: "dark" });
  assert.notEqual(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), "rgb(255, 255, 255)");
  await context.close();
}

{
  // A phone: nothing but the tables' own boxes scrolls sideways.
  const { page, context } = await open(small, { viewport: { width: 375, height: 740 }, deviceScaleFactor: 2 });
  const wide = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(wide <= 375, `the page is ${wide} pixels wide`);
  await context.close();
}

{
  const { page, context, opened } = await open(large);
  const frames = await page.evaluate(async () => {
    const chart = document.querySelector(".timeline .chart");
    for (let i = 0; i < 12; i++) chart.dispatchEvent(new KeyboardEvent("keydown", { key: "+" }));
    const start = performance.now();
    let count = 0;
    for (; count < 40; count++) {
      chart.dispatchEvent(new KeyboardEvent("keydown", { key: count % 16 < 8 ? "ArrowRight" : "ArrowLeft" }));
      await new Promise(requestAnimationFrame);
    }
    return (count * 1000) / (performance.now() - start);
  });
  // Figures for the reader; a slow host fails nothing.
  console.log(`large page: open after ${opened.toFixed(0)} ms, pans at ${frames.toFixed(0)} frames a second`);
  await context.close();
}

await browser.close();
