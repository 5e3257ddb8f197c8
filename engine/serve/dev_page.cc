// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/dev_page.h"

namespace kvwire::engine {

const std::string& DevPage() {
  static const std::string kPage = R"html(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>kvwire</title>
<link rel="icon" href="data:,">
<style>
  :root { color-scheme: light dark; --free: #8883; --cached: #4a90d9; --used: #d98c4a; --held: #3fa34d;
          --stored: #1d7a33; --removed: #a8560b; --cleared: #bb2530; }
  @media (prefers-color-scheme: dark) { :root { --stored: #5fc46f; --removed: #e5a36a; --cleared: #f0747c; } }
  body { font: 14px/1.4 system-ui, sans-serif; margin: 1rem; }
  header { display: flex; flex-wrap: wrap; gap: .5rem 1rem; align-items: center; margin-bottom: 1rem; }
  h1 { font-size: 1.1rem; margin: 0; }
  main { display: grid; grid-template-columns: minmax(16rem, 2fr) minmax(20rem, 3fr); gap: 1rem; }
  section { max-width: 100%; }
  section:first-child { max-width: 37rem; }
  canvas { display: block; image-rendering: pixelated; border: 1px solid #8886; }
  .key { margin-top: .5rem; }
  .key span:first-child { margin-left: 0; }
  .key span { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 .8em; }
  #events { font: 12px/1.5 ui-monospace, monospace; height: calc(100vh - 6.5rem); overflow-y: auto; padding: .3rem;
            border: 1px solid #8886; }
  #events div { padding-left: 2.5em; text-indent: -2.5em; overflow-wrap: anywhere; }
  #status { min-width: 18rem; }
  .BlockStored { color: var(--stored); }
  .BlockRemoved { color: var(--removed); }
  .AllBlocksCleared { color: var(--cleared); }
</style>
</head>
<body>
<header>
  <h1>kvwire</h1>
  <label>rank <select id="rank"></select></label>
  <span id="status">...</span>
  <button id="reset">reset</button>
  <button id="evict" title="the block that the latest BlockStored names first">evict</button>
  <button id="overflow" title="the next 3 batches are lost">overflow</button>
  <span id="said" role="status"></span>
</header>
<main>
  <section>
    <canvas id="grid" width="1" height="1" aria-label="the blocks of the pool"></canvas>
    <div class="key"><span style="background:var(--free)"></span>free<span style="background:var(--cached)"></span>free,
      cached<span style="background:var(--used)"></span>in use<span style="background:var(--held)"></span>in use, cached</div>
  </section>
  <section><div id="events" aria-label="events"></div></section>
</main>
<script>
const $ = id => document.getElementById(id);
let last = 0, log = null, latest = null, rank = 0, next = 0;
const style = getComputedStyle(document.documentElement);
const color = {f: '--free', c: '--cached', u: '--used', h: '--held'};
async function get(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error((await response.json()).error.message);
  return response.json();
}
async function post(path, body) {
  $('said').textContent = '...';
  const response = await fetch(path, {method: 'POST', body: body ? JSON.stringify(body) : ''});
  $('said').textContent = response.ok ? 'done' : (await response.json()).error.message;
}
function draw(blocks) {
  const columns = Math.max(1, Math.ceil(Math.sqrt(blocks.length)));
  const rows = Math.max(1, Math.ceil(blocks.length / columns));
  // Whole pixels of the screen to a block, so that all look alike.
  const canvas = $('grid'), room = (canvas.parentElement.clientWidth - 2) * devicePixelRatio;
  const cell = Math.max(1, Math.floor(room / columns)), gap = cell > 3 ? Math.ceil(cell / 12) : 0;
  canvas.width = columns * cell; canvas.height = rows * cell;
  canvas.style.width = canvas.width / devicePixelRatio + 'px';
  const paint = canvas.getContext('2d');
  for (let i = 0; i < blocks.length; ++i) {
    paint.fillStyle = style.getPropertyValue(color[blocks[i]]);
    paint.fillRect(i % columns * cell, Math.floor(i / columns) * cell, cell - gap, cell - gap);
  }
}
function show(events) {
  const box = $('events'), bottom = box.scrollHeight - box.scrollTop - box.clientHeight < 30;
  for (const event of events) {
    const line = document.createElement('div');
    line.className = event.text.split(' ')[0];
    // Of hashes the last 64 bits, as in /kv/state; the whole text on pointing at it.
    line.textContent = event.batch + '  ' + event.text.replace(/[0-9a-f]+([0-9a-f]{16})/g, '$1');
    line.title = event.text;
    box.append(line);
    const stored = /^BlockStored block_hashes=\[([0-9a-f]+)/.exec(event.text);
    if (stored) latest = stored[1];
    last = event.id;
  }
  while (box.childElementCount > 500) box.firstChild.remove();
  if (bottom) box.scrollTop = box.scrollHeight;
}
function startOver() {
  last = 0; latest = null;
  $('events').replaceChildren();
}
async function look() {
  try {
    const asked = rank, pool = await get('/dev/pool?rank=' + asked);
    const news = await get(`/dev/events?rank=${asked}&after=${last}`);
    if (asked === rank) {  // else another one was chosen meanwhile
      if ($('rank').childElementCount !== pool.num_ranks) {
        $('rank').replaceChildren(...Array.from({length: pool.num_ranks}, (_, i) => new Option(i, i)));
      }
      next = pool.next_batch;
      const cached = [...pool.blocks].filter(b => b === 'c' || b === 'h').length;
      $('status').textContent = `${cached} of ${pool.blocks.length} blocks cached, ${pool.running} running, ` +
        `${pool.waiting} waiting${pool.asleep ? ', asleep' : ''}, next batch ${next}`;
      draw(pool.blocks);
      // Another log counts its own lines: what comes after `last` is not what follows on this page.
      if (news.log !== log) startOver(); else show(news.events);
      log = news.log;
    }
  } catch (error) {
    $('status').textContent = 'no answer: ' + error.message;
  }
  setTimeout(look, 300);
}
$('rank').onchange = () => { rank = Number($('rank').value); startOver(); };
$('reset').onclick = () => post('/reset_prefix_cache?reset_running_requests=true');
$('evict').onclick = () => latest ? post('/dev/faults', {rank, now: {kind: 'evict', block: latest}})
                                  : ($('said').textContent = 'no block was stored yet');
$('overflow').onclick = () => post('/dev/faults', {rank, faults: [0, 1, 2].map(i => ({kind: 'overflow', at: next + i}))});
look();
</script>
</body>
</html>
)html";
  return kPage;
}

}  // namespace kvwire::engine
