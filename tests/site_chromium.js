// Opens every page of the site in headless Chromium: site_chromium.js SITE OUT checks that nothing
// sticks out at 360 and 1280 pixels, that dark mode is dark, and that nothing is asked for from
// elsewhere. A line for each check; exit 1 when one fails. Screenshots are written to OUT/*.png.
'use strict';
const fs = require('fs'), path = require('path'), startChromium = require('./chromium.js');
const [site, out] = process.argv.slice(2);
let failed = 0;
function check(name, good, note) {
  if (!good) failed++;
  console.log((good ? 'ok ' : 'FAIL ') + name + (note ? ': ' + note : ''));
}

function pages(folder) {
  return fs.readdirSync(folder, {withFileTypes: true}).flatMap(f =>
    f.isDirectory() ? pages(path.join(folder, f.name)) : f.name.endsWith('.html') ? [path.join(folder, f.name)] : []);
}

// What is wider than the window, unless it scrolls by itself.
const needed = 'document.documentElement.scrollWidth';
const shown = ['index.html', 'docs/guides/python.html', 'docs/notes/benchmarks.html'];

async function main(chromium) {
  const {evaluate, open, screenshot, width, scheme} = chromium;
  const all = pages(site).filter(f => !f.includes(path.sep + 'fits' + path.sep));
  const wide = [], light = [];
  for (const file of all) {
    await scheme('dark');
    await open(file);
    for (const w of [360, 1280]) {
      await width(w, 900);
      if (await evaluate(needed) > w) wide.push(file + ' at ' + w + ': ' + await evaluate(needed));
      if (!shown.includes(path.relative(site, file))) continue;
      const name = path.basename(file, '.html') + '-' + w;
      await screenshot(name + '-dark', false);
      await scheme('light');
      await screenshot(name, false);
      await scheme('dark');
    }
    if (await evaluate('getComputedStyle(document.body).backgroundColor') !== 'rgb(20, 22, 26)') light.push(file);
  }
  check('360 and 1280 pixels: nothing sticks out', !wide.length, wide.join('; ') || all.length + ' pages');
  check('dark mode', !light.length, light.join(' '));
  const away = chromium.requests.filter(u => !/^(file|data):/.test(u));
  const asked = chromium.requests.length + ' requests, all of files';
  check('nothing comes from elsewhere', !away.length, away.join(' ') || asked);
  check('no error in a page', !chromium.problems.length, chromium.problems.join('; '));
}

startChromium(out).then(chromium => main(chromium)
  .catch(e => check('the site in Chromium', false, e.stack))
  .finally(() => chromium.end(failed ? 1 : 0)));
