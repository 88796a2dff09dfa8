// The command of the MCP Inspector, driven by a test: a process of it for each call.
//
// Orders and what it prints: ../driver.py, with `tool` and `arguments`. The command asks nobody, so a call that asks would wait.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';

const [program] = process.argv.slice(2);
const show = (line) => console.log(JSON.stringify(line));
// It keeps files of its user.
const home = mkdtempSync(path.join(tmpdir(), 'inspector-'));
let url;

async function ask({ call, tool, arguments: given }) {
  const words = ['--cli', url, '--transport', 'http', '--protocol-era', 'modern', '--format', 'json', '--quiet'];
  words.push('--method', 'tools/call', '--tool-name', tool, '--tool-args-json', JSON.stringify(given));
  const child = spawn(process.execPath, [program, ...words], { env: { ...process.env, HOME: home } });
  const [said, fault] = await Promise.all([child.stdout.toArray(), child.stderr.toArray()]);
  try {
    const { result } = JSON.parse(Buffer.concat(said));
    show({ call, [result.isError ? 'error' : 'result']: result.content[0].text });
  } catch {
    show({ call, error: Buffer.concat([...said, ...fault]).toString() });
  }
}

for await (const line of createInterface(process.stdin)) {
  const order = JSON.parse(line);
  if (order.connect !== undefined) {
    url = order.connect;
    // It is told the revision, and has no other.
    show({ connected: '2026-07-28' });
  } else if (order.call !== undefined) {
    void ask(order);
  } else {
    show({ closed: true });
  }
}
rmSync(home, { recursive: true });
