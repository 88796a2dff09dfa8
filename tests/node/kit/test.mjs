// Tests with a deadline, and the transport that they run on.
//
// `TAILROPE_TEST_TRANSPORT=stock` runs them on the SDKs' own transports, `TAILROPE_TEST_LINES=v1` on one SDK line
// alone.
import { after, before, describe, test as nodeTest } from 'node:test';

import { openAll } from '../../servers/node/control.mjs';

export const TRANSPORT = process.env.TAILROPE_TEST_TRANSPORT ?? 'tailrope';
export const isStock = TRANSPORT === 'stock';

const wanted = (process.env.TAILROPE_TEST_LINES ?? 'v1,v2').split(',');
export const LINES = ['v1', 'v2'].filter((line) => wanted.includes(line));

/** For tests about Tailrope itself, which mean nothing on the stock transport. */
export const ours = { skip: isStock && 'about Tailrope itself' };

/** For tests that take long, or measure: `make test-full` runs them. */
export const isFull = process.env.TAILROPE_TEST_FULL === '1';
export const full = { skip: (isStock && ours.skip) || (!isFull && 'only make test-full runs it') };

// What hangs is to end; a busy machine is to finish. Everything takes longer under a sanitizer.
const DEADLINE_MS = Number(process.env.TAILROPE_TEST_DEADLINE_MS ?? 120_000);

// What a test left open would keep the process for ever.
after(() => {
  setTimeout(() => {
    console.error(`still open: ${process.getActiveResourcesInfo()}`);
    process.exit(1);
  }, DEADLINE_MS).unref();
});

/** A test that ends, whatever happens, and leaves no tool waiting. */
export function test(name, ...rest) {
  const run = rest.pop();
  nodeTest(name, { timeout: DEADLINE_MS, ...rest[0] }, async (t) => {
    t.after(openAll);
    await run(t);
  });
}

/**
 * The tests of `define(line, server)`, once for each SDK line, with a server that they share. `server()` gives
 * it once the tests run; `make(line)` starts it.
 */
export function onEachLine(make, define) {
  for (const line of LINES) {
    describe(line, () => {
      let server;
      const hook = { timeout: DEADLINE_MS };
      before(async () => {
        server = await make(line);
      }, hook);
      after(() => server?.close(), hook);
      define(line, () => server);
    });
  }
}
