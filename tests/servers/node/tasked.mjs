// A tool of long calls that asks: `tasked`, as the Python servers have it (tests/servers/python/tasked.py). It tells a file
// which process ran it, and in which round.
import { closeSync, openSync, writeSync } from 'node:fs';

import { inputRequired } from '@modelcontextprotocol/server';

import { sleep } from '../../node/kit/raw.mjs';

const requestedSchema = { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] };

/** One run of a call; the Python tool says what a plan has. */
export async function tasked(plan, { mcpReq }) {
  const file = openSync(plan.facts, 'a');
  const tell = (fact, more) =>
    writeSync(file, `${JSON.stringify({ t: Number(process.hrtime.bigint()), fact, ...more })}\n`);
  const step = async () => {
    const { ms = 0, says = 0 } = plan;
    for (let at = 1; at <= says; at++) {
      const { progressToken } = mcpReq._meta;
      const params = { progressToken, progress: at, total: says, message: `part ${at}` };
      await mcpReq.notify({ method: 'notifications/progress', params });
      await sleep(ms / says);
    }
    await sleep(says ? 0 : ms);
  };
  const cancelled = () => tell('cancelled');
  mcpReq.signal.addEventListener('abort', cancelled);
  try {
    const { round, answers } = JSON.parse(mcpReq.requestState?.() ?? '{"round":0,"answers":[]}');
    tell('begin', { process: process.pid, round });
    const responses = mcpReq.inputResponses ?? {};
    answers.push(
      ...Object.keys(responses)
        .sort()
        .map((key) => responses[key].content.name),
    );
    await step();
    if (round < (plan.rounds ?? 0)) {
      const keys = Array.from({ length: plan.keys ?? 1 }, (_, at) => `q${at}`);
      const asked = (key) =>
        inputRequired.elicit({ message: `${plan.token}/${round}/${key.slice(1)}`, requestedSchema });
      return inputRequired({
        inputRequests: Object.fromEntries(keys.map((key) => [key, asked(key)])),
        requestState: JSON.stringify({ round: round + 1, answers }),
      });
    }
    for (let at = 0; at < (plan.asks ?? 0); at++) {
      const { content } = await mcpReq.elicitInput({ message: `${plan.token}/ask/${at}`, requestedSchema });
      answers.push(content.name);
      await step();
    }
    tell('end');
    return { content: [{ type: 'text', text: [plan.token, ...answers].join(' ') }] };
  } finally {
    mcpReq.signal.removeEventListener('abort', cancelled);
    closeSync(file);
  }
}
