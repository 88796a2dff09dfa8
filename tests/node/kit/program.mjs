// Programs in processes of their own: how such a process ends is what their tests are about.
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const cwd = fileURLToPath(new URL('..', import.meta.url));
const SERVING = `
  import { Peer } from './kit/raw.mjs';
  import { serve } from '../servers/node/transports.mjs';
`;

/** Runs a program to its end. */
export function run(code, timeout = 60_000) {
  return spawnSync(process.execPath, ['--input-type=module', '-e', code], { cwd, encoding: 'utf8', timeout });
}

/** The same with `serve` and `Peer`, to be a server and its client. */
export const runServing = (code, timeout) => run(SERVING + code, timeout);
