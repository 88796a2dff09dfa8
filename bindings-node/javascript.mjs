// Compiles typescript/ into lib/, and writes the CommonJS form of that and its types into cjs/. There, one file for each
// entry: what must be one for all of them is kept by runtime.mts in the global object.
import { execFileSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { build } from 'esbuild';

const here = dirname(fileURLToPath(import.meta.url));
const lib = join(here, 'lib');
const cjs = join(here, 'cjs');
const entries = {
  index: 'index',
  client: 'client/index',
  mcp: 'server/mcp',
  'mcp-v1': 'server/mcp-v1',
  testing: 'testing/index',
};

const tsc = join(dirname(createRequire(import.meta.url).resolve('typescript/package.json')), 'bin', 'tsc');
for (const folder of [lib, cjs]) {
  rmSync(folder, { recursive: true, force: true });
}
execFileSync(process.execPath, [tsc, '-p', join(here, 'tsconfig.json')], { stdio: 'inherit' });

await build({
  // Beside each other, so that the path of the native half is right as it is.
  entryPoints: Object.entries(entries).map(([out, file]) => ({ in: join(lib, `${file}.mjs`), out })),
  outdir: cjs,
  outExtension: { '.js': '.cjs' },
  bundle: true,
  packages: 'external',
  external: ['*.node'],
  platform: 'node',
  format: 'cjs',
  target: 'node20',
  logLevel: 'warning',
});
for (const file of readdirSync(lib, { recursive: true })) {
  if (/\.d\.[cm]ts$/.test(file)) {
    const types = join(cjs, file.replace('.d.mts', '.d.cts'));
    mkdirSync(dirname(types), { recursive: true });
    writeFileSync(
      types,
      readFileSync(join(lib, file), 'utf8').replaceAll(/(['"]\.{1,2}\/.*?)\.mjs(?=['"])/g, '$1.cjs'),
    );
  }
}
