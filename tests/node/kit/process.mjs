// Processes with a test server in them.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

import { within } from './raw.mjs';

/** Starts `run.mjs` with a server of a line. */
export async function spawnServer(line, options = {}) {
  const script = fileURLToPath(new URL('run.mjs', import.meta.url));
  const child = spawn(process.execPath, ['--expose-gc', script, line, JSON.stringify(options)], {
    stdio: ['pipe', 'pipe', 'pipe'],
  });
  let log = '';
  child.stderr.setEncoding('utf8').on('data', (text) => (log += text));
  const exited = once(child, 'exit').then(([code, signal]) => code ?? signal);
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  const read = async () => {
    const { value } = await within(lines.next(), 60_000, 'the process');
    if (value === undefined) {
      throw new Error(`the process has ended with ${await exited}: ${log}`);
    }
    return value;
  };
  const port = Number((await read()).split(' ')[1]);
  return {
    port,
    /** Sends a line and gives the answer. */
    async ask(line) {
      child.stdin.write(`${line}\n`);
      return JSON.parse(await read());
    },
    kill: (signal) => child.kill(signal),
    /** Resolves to the exit code, or the name of the signal. */
    exited,
    /** What it wrote to standard error. */
    get log() {
      return log;
    },
    async close() {
      child.stdin.end();
      const timer = setTimeout(() => child.kill('SIGKILL'), 15_000);
      await exited;
      clearTimeout(timer);
    },
  };
}
