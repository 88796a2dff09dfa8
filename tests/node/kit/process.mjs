// Processes with a test server in them.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

/** Starts `run.mjs` with a server of a line. */
export async function spawnServer(line, options = {}) {
  const script = fileURLToPath(new URL('run.mjs', import.meta.url));
  const child = spawn(process.execPath, ['--expose-gc', script, line, JSON.stringify(options)], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const exited = once(child, 'exit');
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  const port = Number((await lines.next()).value.split(' ')[1]);
  return {
    port,
    /** Sends a line and gives the answer. */
    async ask(line) {
      child.stdin.write(`${line}\n`);
      return JSON.parse((await lines.next()).value);
    },
    /** Resolves to the exit code, or the name of the signal. */
    exited: exited.then(([code, signal]) => code ?? signal),
    async close() {
      child.stdin.end();
      await exited;
    },
  };
}
