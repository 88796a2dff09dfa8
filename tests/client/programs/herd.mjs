// Many streams at once through our fetch alone, in one process: node herd.mjs v1|v2 URL COUNT OPTIONS. Prints what
// herd.py prints.
import { resumable } from './connect.mjs';

const [, url, count, options] = process.argv.slice(2);
const delays = [];
const faults = [];
let answered = 0;
// A connection that this machine refuses in the crowd is tried again; that is another wait.
const onResume = ({ attempt, delayMs }) => attempt === 1 && delays.push(delayMs);

const ours = await resumable({ ...JSON.parse(options), onResume });
const headers = {
  accept: 'application/json, text/event-stream',
  'content-type': 'application/json',
  'mcp-session-id': 'raw-session',
};

async function one(id) {
  const params = { name: 'run', arguments: { stream: `s${id}` } };
  const body = JSON.stringify({ jsonrpc: '2.0', id, method: 'tools/call', params });
  try {
    const answer = await ours(url, { method: 'POST', headers, body });
    const text = await answer.text();
    answered += text.split('"result"').length - 1;
  } catch (error) {
    faults.push(String(error.cause ?? error));
  }
}

await Promise.all(Array.from({ length: Number(count) }, (_, id) => one(id)));
console.log(JSON.stringify({ answered, delays, faults: faults.slice(0, 5) }));
process.exit();
