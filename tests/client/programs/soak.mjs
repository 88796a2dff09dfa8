// One call over many resumes, with an official client: node --expose-gc soak.mjs v1|v2 [--line OPTIONS] URL EVERY.
// Prints what soak.py prints.
import { readdirSync, readFileSync } from 'node:fs';

import { connect } from './connect.mjs';

const PAGE_BYTES = 4096;
const LONG_MS = 600_000;
const [line, ...rest] = process.argv.slice(2);
const ours = rest[0] === '--line' ? JSON.parse(rest.splice(0, 2)[1]) : undefined;
const [url, every] = rest;
const report = { held: [], rss: [], descriptors: [], progress: 0 };

const nothing = () => {};
const { callTool, close } = await connect(line, url, ours, { onLog: nothing, onAsk: nothing, onError: nothing });
const onprogress = ({ progress }) => {
  if (progress !== report.progress + 1) {
    report.error = `${progress} after ${report.progress}`;
  }
  report.progress += 1;
  if (report.progress % Number(every) === 0) {
    gc();
    const { heapUsed, external } = process.memoryUsage();
    report.held.push(heapUsed + external);
    report.rss.push(Number(readFileSync('/proc/self/statm', 'utf8').split(' ')[1]) * PAGE_BYTES);
    report.descriptors.push(readdirSync('/proc/self/fd').length);
  }
};
try {
  const result = await callTool({ name: 'run', arguments: { stream: 'a' } }, { onprogress, timeout: LONG_MS });
  report.result = result.content[0].text;
} catch (error) {
  report.error = error.message;
}
await close();
console.log(JSON.stringify(report));
process.exit();
