// SPDX-License-Identifier: Apache-2.0
// The page at / of `kvwire serve --dev` in a headless Chromium: what it shows must be what the engine says, and its buttons must do what
// they say. usage: node page_test.js KVWIRE [--screenshot FILE]; the environment's CHROMIUM names another browser than /usr/bin/chromium.
'use strict';
const {spawn} = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const readline = require('node:readline');
const {chromium} = require('playwright-core');

const kWatchdogMs = 60000;
const kNumBlocks = 257;  // the null block included
const kRanks = 2;
// Two ranks; an output token takes 10 ms, so that a request can be seen while it runs.
const kFlags = ['serve', 'kvwire-sim', '--port', '0', '--dev', '--num-blocks', String(kNumBlocks), '--data-parallel-size', String(kRanks),
                '--decode-us-per-request', '10000', '--kv-events-config', JSON.stringify({
                  enable_kv_cache_events: true, endpoint: 'tcp://127.0.0.1:0', replay_endpoint: 'tcp://127.0.0.1:0', topic: 'kv-events',
                  kvwire: {mode: 'bind', overflow: 'drop', restart_guard_s: 0}})];  // a batch is where a request makes one
const kBrowserArgs = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
                      '--disable-component-update', '--disable-sync', '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1'];

function expect(condition, what) {
  if (!condition) throw new Error(what);
}

// `kvwire serve` on ports that the system chose.
class Engine {
  async start(kvwire) {
    this.process = spawn(kvwire, kFlags, {stdio: ['ignore', 'pipe', 'ignore']});
    this.ended = new Promise(resolve => {
      this.process.on('error', error => resolve(error.message));
      this.process.on('exit', (code, signal) => resolve(code ?? signal));
    });
    for await (const line of readline.createInterface({input: this.process.stdout})) {
      const serving = /^serving on (\S+)/.exec(line);
      if (serving) {
        this.url = serving[1];
        return;
      }
    }
    throw new Error(`the server did not start: ${await this.ended}`);
  }
  async stop() {
    this.process.kill('SIGTERM');
    const code = await this.ended;
    expect(code === 0, `the server ended with ${code}`);
  }
  kill() {
    if (this.process) this.process.kill('SIGKILL');
  }

  async get(where) {
    const response = await fetch(this.url + where);
    expect(response.ok, `${where} answers ${response.status}`);
    return response.json();
  }
  state(rank) { return this.get(`/kv/state?rank=${rank}`); }
  ask(rank, prompt, maxTokens, signal) {
    return fetch(this.url + '/v1/completions', {
      method: 'POST', signal, headers: {'Content-Type': 'application/json', 'X-data-parallel-rank': String(rank)},
      body: JSON.stringify({model: 'kvwire-sim', prompt, max_tokens: maxTokens, stream: signal !== undefined})});
  }
  async complete(rank, prompt, maxTokens = 1) {
    const response = await this.ask(rank, prompt, maxTokens), answer = await response.text();
    expect(response.ok, `a completion is answered ${response.status}: ${answer}`);
  }
  // The hashes of a prompt's full blocks, their last 64 bits.
  async hashesOf(prompt) {
    const response = await fetch(this.url + '/kv/lookup', {method: 'POST', body: JSON.stringify({prompt})});
    return (await response.json()).ranks[0].blocks.map(block => block.hash.slice(-16));
  }
  async metric(name, rank) {
    const text = await (await fetch(this.url + '/metrics')).text();
    const line = text.split('\n').find(each => each.startsWith(`${name}{engine="${rank}"`));
    expect(line, `/metrics has no ${name}`);
    return Number(line.split(' ').pop());
  }
}

// Runs in the page: how many cells of the grid have each colour of the key, in the key's order; null before there is a grid.
function countCells(numBlocks) {
  const canvas = document.getElementById('grid'), columns = Math.ceil(Math.sqrt(numBlocks)), cell = canvas.width / columns;
  if (cell < 2) return null;
  const copy = document.createElement('canvas');
  copy.width = canvas.width;
  copy.height = canvas.height;
  const paint = copy.getContext('2d', {willReadFrequently: true}), swatch = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  paint.drawImage(canvas, 0, 0);
  const colors = [...document.querySelectorAll('.key span')].map(span => {
    swatch.clearRect(0, 0, 1, 1);
    swatch.fillStyle = getComputedStyle(span).backgroundColor;
    swatch.fillRect(0, 0, 1, 1);
    return swatch.getImageData(0, 0, 1, 1).data;
  });
  const counts = colors.map(() => 0), pixels = paint.getImageData(0, 0, canvas.width, canvas.height).data;
  for (let i = 0; i < numBlocks; ++i) {
    const [x, y] = [i % columns, Math.floor(i / columns)].map(place => Math.floor((place + 0.5) * cell - 0.5));
    const at = 4 * (y * canvas.width + x);
    const match = colors.findIndex(color => [0, 1, 2, 3].every(k => Math.abs(color[k] - pixels[at + k]) <= 4));
    if (match < 0) return null;
    ++counts[match];
  }
  const [free, cached, used, held] = counts;
  return {free, cached, used, held};
}

class DevPage {
  constructor(page, engine) {
    this.page = page;
    this.engine = engine;
    this.requests = [];
    this.complaints = [];
    this.expected = [];
    page.context().on('request', request => this.requests.push(request.url()));
    page.on('console', message => this.complaints.push(`${message.type()}: ${message.text()} (${message.location().url})`));
    page.on('pageerror', error => this.complaints.push(error.message));
  }
  // One line of the console that is no fault.
  expectComplaint(pattern) { this.expected.push(pattern); }
  checkComplaints() {
    for (const pattern of this.expected) {
      const at = this.complaints.findIndex(line => pattern.test(line));
      expect(at >= 0, `the console lacks ${pattern}`);
      this.complaints.splice(at, 1);
    }
    expect(this.complaints.length === 0, `the console has ${this.complaints.join('; ')}`);
  }
  checkRequests() {
    const elsewhere = this.requests.filter(url => !url.startsWith(this.engine.url + '/') && !url.startsWith('data:'));
    expect(this.requests.length > 0 && elsewhere.length === 0, `the page asked ${elsewhere.join(', ')}`);
  }

  async until(what, condition, argument) {
    try {
      await this.page.waitForFunction(condition, argument, {timeout: kWatchdogMs, polling: 50});
    } catch (error) {
      const says = await this.page.evaluate(() => ['status', 'said'].map(id => document.getElementById(id).textContent).join(' | '));
      const cells = JSON.stringify(await this.page.evaluate(countCells, kNumBlocks - 1));
      throw new Error(`the page does not show ${what}; it says "${says}", cells ${cells}: ${error.message}`);
    }
  }
  // Waits until number and cells are those of the engine, and nobody holds a block; returns how many are cached.
  async showsStateOf(rank) {
    await this.until('an idle pool', () => / 0 running, 0 waiting/.test(document.getElementById('status').textContent));
    const {num_blocks: cached} = await this.engine.state(rank);
    const wanted = {text: `${cached} of ${kNumBlocks - 1} blocks cached, 0 running, 0 waiting`, cached, free: kNumBlocks - 1 - cached};
    await this.until(`"${wanted.text}" and as many cells`, `(wanted => {
      const cells = (${countCells})(${kNumBlocks - 1});
      return cells && cells.cached === wanted.cached && cells.free === wanted.free &&
        document.getElementById('status').textContent.startsWith(wanted.text);
    })(${JSON.stringify(wanted)})`);
    return cached;
  }
  // Waits until an event's line has this kind and these words.
  hasRow(kind, words = '') {
    return this.until(`${kind} ${words}`, wanted => [...document.querySelectorAll(`#events .${wanted.kind}`)].some(
      row => row.textContent.includes(wanted.kind) && row.textContent.includes(wanted.words)), {kind, words});
  }
  countRows(kind) { return this.page.locator(`#events .${kind}`).count(); }
  // Waits until the page knows the number of the next batch, and returns it.
  async knowsNextBatch(rank) {
    const {next_batch: next} = await this.engine.get(`/dev/pool?rank=${rank}`);
    await this.until(`next batch ${next}`, text => document.getElementById('status').textContent.endsWith(text), `next batch ${next}`);
    return next;
  }
  // Presses a button and waits for what the page says of it.
  async press(button, answer) {
    await this.page.evaluate(() => { document.getElementById('said').textContent = ''; });
    await this.page.click('#' + button);
    await this.until(`"${answer}" after ${button}`, text => document.getElementById('said').textContent.includes(text), answer);
  }
}

const kPrompts = ['Once upon a time there was a king who had three sons, and the youngest of them was a fool.',
                  'It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness.',
                  'Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my purse.'];

async function gridAndEventsFollowARequest(view, engine) {
  expect(await view.showsStateOf(0) === 0, 'a new engine has cached blocks');
  for (const prompt of kPrompts) {
    await engine.complete(0, prompt, 40);
    await view.hasRow('BlockStored', (await engine.hashesOf(prompt))[0]);
  }
  expect(await view.showsStateOf(0) >= 20, 'the requests left too few blocks');
}

async function aRunningRequestIsSeen(view, engine, screenshot) {
  for (const prompt of kPrompts) await engine.complete(0, prompt);
  const abort = new AbortController();
  const running = engine.ask(0, kPrompts[0] + ' The others were proud of themselves, and of nothing else.', 2000, abort.signal);
  await running;
  await view.until('blocks in use', `(() => {
    const cells = (${countCells})(${kNumBlocks - 1});
    const says = document.getElementById('status').textContent;
    return cells && cells.used > 0 && cells.held >= 8 && says.includes(' 1 running') && parseInt(says) === cells.cached + cells.held;
  })()`);
  if (screenshot) await view.page.screenshot({path: screenshot});
  abort.abort();
  await view.showsStateOf(0);
}

async function evictTakesTheLatestBlock(view, engine) {
  const prompt = 'The sky above the port was the color of television, tuned to a dead channel.';
  await engine.complete(0, prompt);
  const [hash] = await engine.hashesOf(prompt);
  await view.hasRow('BlockStored', hash);
  const cached = await view.showsStateOf(0);
  await view.press('evict', 'done');
  await view.hasRow('BlockRemoved', hash);
  expect(await view.showsStateOf(0) === cached - 1, 'evict did not take one block');
}

async function anErrorIsShown(view) {
  await view.press('evict', 'done');
  // There is nothing to evict any more. The browser complains about the status.
  view.expectComplaint(/status of 400 .*dev\/faults/);
  await view.press('evict', 'block');
}

async function aRankShowsItsOwn(view, engine) {
  const first = (await engine.hashesOf(kPrompts[0]))[0], prompt = 'All happy families are alike; every unhappy one is not.';
  await engine.complete(1, prompt);
  const others = await view.showsStateOf(0);
  await view.page.selectOption('#rank', '1');
  await view.hasRow('BlockStored', (await engine.hashesOf(prompt))[0]);
  const own = await view.showsStateOf(1);
  expect(own > 0 && own !== others, 'rank 1 shows as many blocks as rank 0');
  expect(!(await view.page.textContent('#events')).includes(first), 'rank 1 shows an event of rank 0');
  await view.page.selectOption('#rank', '0');
  await view.hasRow('BlockStored', first);
  await view.showsStateOf(0);
}

async function overflowLosesThreeBatches(view, engine) {
  const next = await view.knowsNextBatch(0);
  await view.press('overflow', 'done');
  for (let i = 0; i < 5; ++i) await engine.complete(0, `${i}: a prompt that nobody has asked before, number ${i}.`);
  expect(await view.knowsNextBatch(0) === next + 5, 'five requests did not make five batches');
  const {happened} = await engine.get('/dev/faults?rank=0');
  expect(happened.overflow === 3, `${happened.overflow} overflows happened, expected 3`);
  const dropped = await engine.metric('kvwire_publisher_dropped_full_total', 0);
  expect(dropped === 3, `${dropped} batches were dropped, expected 3`);
  await view.showsStateOf(0);
}

async function resetEmptiesEveryRank(view) {
  expect(await view.countRows('AllBlocksCleared') === 0, 'there is an AllBlocksCleared before any reset');
  await view.press('reset', 'done');
  await view.hasRow('AllBlocksCleared');
  expect(await view.showsStateOf(0) === 0, 'rank 0 has blocks after a reset');
  await view.page.selectOption('#rank', '1');
  await view.hasRow('AllBlocksCleared');
  expect(await view.showsStateOf(1) === 0, 'rank 1 has blocks after a reset');
  await view.page.selectOption('#rank', '0');
  await view.showsStateOf(0);
}

async function main() {
  const [kvwire, option, screenshot] = process.argv.slice(2);
  expect(kvwire && (option === undefined || (option === '--screenshot' && screenshot)), 'usage: page_test.js KVWIRE [--screenshot FILE]');
  const profile = fs.mkdtempSync(path.join(os.tmpdir(), 'kvwire-page-'));
  const engine = new Engine();
  let browser = null;
  try {
    await engine.start(kvwire);
    browser = await chromium.launchPersistentContext(profile, {
      executablePath: process.env.CHROMIUM || '/usr/bin/chromium', args: kBrowserArgs, viewport: {width: 1200, height: 560}});
    const page = browser.pages()[0] ?? await browser.newPage();
    const view = new DevPage(page, engine);
    await page.goto(engine.url + '/');
    await gridAndEventsFollowARequest(view, engine);
    await aRankShowsItsOwn(view, engine);
    await overflowLosesThreeBatches(view, engine);
    await resetEmptiesEveryRank(view);
    await evictTakesTheLatestBlock(view, engine);
    await aRunningRequestIsSeen(view, engine, screenshot);
    await anErrorIsShown(view);
    view.checkComplaints();
    view.checkRequests();
    const [version] = /Chrome\/[0-9.]+/.exec(await page.evaluate(() => navigator.userAgent));
    await browser.close();
    browser = null;
    await engine.stop();
    console.log(`browser ${version}: grid, events, both ranks and every button agree with the engine; ${view.requests.length} requests, none elsewhere`);
  } finally {
    if (browser) await browser.close();
    engine.kill();
    fs.rmSync(profile, {recursive: true, force: true, maxRetries: 5});
  }
}

main().catch(error => {
  console.error(`browser: ${error.stack}`);
  process.exitCode = 1;
});
