// A tool whose every event says whose it is, and that tells a file of it which outlives its process: `marked`.
//
// An event carries `[[SESSION/STREAM/N]]` in its text. The file gets one line of JSON for each fact, written before
// what comes next is done: a `note` which process runs the call, `emit` before an event is handed to the server, then
// `taken`, `failed` where an event before it is not stored, or `refused` (`unsure` where the plan says that nobody can
// know). Times are those of the machine's monotonic clock, which every process here shares, so that facts of several
// processes can be put in order.
import { closeSync, existsSync, openSync, writeSync } from 'node:fs';

import { sleep } from '../../node/kit/raw.mjs';

// In the words for an event that is stored, and behind one that is not.
const FAILED = 'an event that was sent before';
// Events right before a kill that follow at once.
const LAST = 10;

const die = () => process.kill(process.pid, 'SIGKILL');

/** Numbers from 0 to 1 by a seed (mulberry32). */
function seeded(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/**
 * One call, as `plan` says:
 *
 * session, stream: the names in the marks; facts: the file. count: how many events; until: a file, and it goes on until
 * that is there. pause_ms: least and most between two events, half of them follow at once. bytes: the most that is added
 * to a text. close: how likely it closes its connection after an event. standalone: how many events go to the session's
 * standalone stream, spread over the call. unsure: what is in the words of faults after which nobody knows whether an
 * event was stored; '' is in all of them. kill: {n, at} kills the process at event n: `before` it is sent, when it is
 * `sent` and nothing is known of it, when it is `taken`, or `later`, when it may be on the wire.
 */
export async function marked(plan, ctx) {
  const file = openSync(plan.facts, 'a');
  const random = seeded(plan.seed);
  const tell = (fact, stream, n, more) => {
    const time = process.hrtime.bigint();
    const rest = JSON.stringify({ fact, session: plan.session, stream, n, ...more });
    writeSync(file, `{"t":${time},${rest.slice(1)}\n`);
  };
  const textOf = (stream, n) => `[[${plan.session}/${stream}/${n}]]${'x'.repeat(random() * (plan.bytes ?? 0))}`;
  const outcome = async (sending, stream, n) => {
    try {
      await sending;
      tell('taken', stream, n);
    } catch (error) {
      const why = String(error).slice(0, 200);
      const fact = plan.unsure !== undefined && why.includes(plan.unsure) ? 'unsure' : 'refused';
      tell(why.includes(FAILED) ? 'failed' : fact, stream, n, { why });
    }
  };
  const event = async (n) => {
    const at = plan.kill?.n === n ? plan.kill.at : undefined;
    tell('emit', plan.stream, n);
    if (at === 'before') {
      die();
    }
    const sending = ctx.progress(n, textOf(plan.stream, n));
    if (at === 'sent') {
      die();
    }
    await outcome(sending, plan.stream, n);
    if (at === 'later') {
      await sleep(5);
    }
    if (at === 'taken' || at === 'later') {
      die();
    }
  };
  let said = 0;
  const standalone = async (n) => {
    while (said < Math.floor(((plan.standalone ?? 0) * n) / plan.count)) {
      said += 1;
      tell('emit', 'standalone', said);
      await outcome(ctx.standalone(`[[${plan.session}/standalone/${said}]]`), 'standalone', said);
    }
  };
  const goesOn = (n) => (plan.until === undefined ? n < plan.count : !existsSync(plan.until));

  // The store has not answered for the last ones when the process is killed.
  const rushes = (n) => plan.kill !== undefined && n + LAST >= plan.kill.n;

  try {
    tell('note', plan.stream, undefined, { process: process.pid });
    const [low, high] = plan.pause_ms ?? [0, 0];
    for (let n = 1; goesOn(n - 1); n++) {
      await event(n);
      await standalone(n);
      if (random() < (plan.close ?? 0)) {
        ctx.close({});
      }
      // Others get their turn in any case.
      await sleep(random() < 0.5 || rushes(n) ? 0 : low + random() * (high - low));
    }
    tell('emit', plan.stream, 'end');
    return textOf(plan.stream, 'end');
  } finally {
    closeSync(file);
  }
}
