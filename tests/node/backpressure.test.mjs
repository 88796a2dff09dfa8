// Readers that do not read, and readers that are killed. (F-56, F-57, I10)
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';

import { Peer, counts, lastId, results, sleep } from './kit/raw.mjs';
import { spawnServer } from './kit/process.mjs';
import { LINES, marked, newGate, open, serve } from './kit/servers.mjs';

const MIB = 1 << 20;

for (const line of LINES) {
  describe(line, () => {
    let server;
    before(async () => {
      server = await serve(line);
    });
    after(() => server.close());

    test('f56 reader that stalls delays no other call', async () => {
      const peer = await Peer.open(server.port);
      const gate = newGate();
      // The reply is not read, so the socket fills up.
      const stalled = await peer.script('emit 2000 4000', `mark ${gate}`, `gate ${gate}`, 'return x');
      for (let call = 0; call < 5; call++) {
        const started = performance.now();
        assert.equal(await peer.ask('return quick'), 'quick');
        assert.ok(performance.now() - started < 1_000);
      }
      // Nor does it block the handler that writes to it.
      await marked(gate);
      open(gate);
      stalled.drop();
    });

    const patient = { timeout: 120_000 };
    test('f57 stalled and killed readers cost no memory while a gigabyte is emitted', patient, async (t) => {
      const child = await spawnServer(line);
      t.after(() => child.close());
      const peer = await Peer.open(child.port);
      await peer.ask('emit 2000 10000');
      const before = (await child.ask('state')).rss;
      const stalled = await peer.script('emit 50000 10000', 'mark stalled', 'return x');
      const killed = await peer.script('emit 50000 10000', 'mark killed', 'return x');
      await killed.some(2);
      killed.drop();
      let most = 0;
      for (let over = 0; over < 2; ) {
        await sleep(50);
        const { rss, passed, errors } = await child.ask('state');
        assert.deepEqual(errors, []);
        most = Math.max(most, rss - before);
        over = passed.length;
      }
      assert.ok(most < 96 * MIB, `${most >> 20} MiB`);
      // The reader that wakes up is told where the hole is and gets the rest.
      const blocks = await stalled.blocks();
      let found = blocks;
      while (results(found).length === 0) {
        found = found.concat(await (await peer.resume(lastId(found))).blocks());
      }
      const seen = counts(found);
      const holes = seen.filter((count, index) => index > 0 && count !== seen[index - 1] + 1).length;
      const gaps = found.filter((block) => block.comment?.startsWith('gap')).length;
      assert.deepEqual(results(found), ['x']);
      assert.ok(holes <= gaps, `${holes} holes, ${gaps} gaps`);
    });
  });
}
