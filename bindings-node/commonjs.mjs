// Writes the CommonJS form of lib/ and its types into cjs/. One file for each entry: what must be one for all of
// them is kept by lib/runtime.mjs in the global object.
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { build } from 'esbuild';

const here = dirname(fileURLToPath(import.meta.url));
const lib = join(here, 'lib');
const cjs = join(here, 'cjs');
const entries = ['index', 'client', 'mcp', 'mcp-v1', 'testing'];

rmSync(cjs, { recursive: true, force: true });
mkdirSync(cjs);
await build({
  entryPoints: entries.map((name) => join(lib, `${name}.mjs`)),
  outdir: cjs,
  outExtension: { '.js': '.cjs' },
  bundle: true,
  packages: 'external',
  external: ['*.node'],
  platform: 'node',
  format: 'cjs',
  target: 'node20',
  // Of the packages that are loaded when they are needed, too, the CommonJS form.
  supported: { 'dynamic-import': false },
  logLevel: 'warning',
});
for (const name of [...entries, 'runtime']) {
  const types = readFileSync(join(lib, `${name}.d.mts`), 'utf8');
  writeFileSync(join(cjs, `${name}.d.cts`), types.replaceAll("'./runtime.mjs'", "'./runtime.cjs'"));
}
