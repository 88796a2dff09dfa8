// Programs that a bundler has put together find the native half, or say why not.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { copyFileSync, cpSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { before, describe } from 'node:test';

import { build } from 'esbuild';

import { folder, installed, packages, root } from './kit/packed.mjs';
import { full, isFull, ours, test } from './kit/test.mjs';

// What users' entries use: every part of the package, with the SDKs below it.
const USE = `
  const made = [
    new v1.StreamableHTTPServerTransport({ sessionIdGenerator: () => 'one' }),
    new v2.NodeStreamableHTTPServerTransport({ sessionIdGenerator: () => 'one' }),
  ];
  const isServed = v1.status().transport === 'tailrope' && made.length === 2;
  const rest = [resumableFetch(), serve, v2.createResumableMcpHandler(() => {}), v1.createSessionRouter(() => {})];
  openStore('memory:').then((store) => console.log(isServed && rest.length === 4 && new EventStore(store) instanceof EventStore));
`;
const PARTS = {
  '{ EventStore, openStore }': 'tailrope',
  '{ resumableFetch }': 'tailrope/client',
  '{ serve }': 'tailrope/testing',
  '* as v1': 'tailrope/mcp-v1',
  '* as v2': 'tailrope/mcp',
};
const lines = (line) =>
  Object.entries(PARTS)
    .map(([names, part]) => line(names, part))
    .join('\n');
const SOURCES = {
  'app.mjs': lines((names, part) => `import ${names} from '${part}';`) + USE,
  'app.cjs': lines((names, part) => `const ${names.replace('* as ', '')} = require('${part}');`) + USE,
};
let program;

before(() => {
  program = installed('bundled', ...packages);
  for (const [name, source] of Object.entries(SOURCES)) {
    writeFileSync(join(program, name), source);
  }
});

/** What a bundle prints; `isAlone` where nothing is installed beside it. */
function printed(out, file, { isAlone = false, command = [process.execPath] } = {}) {
  let place = join(program, out);
  if (isAlone) {
    place = join(folder, 'alone', out);
    cpSync(join(program, out), place, { recursive: true });
  }
  const [name, ...args] = [...command, join(place, file)];
  const { stdout, stderr } = spawnSync(name, args, { cwd: place, encoding: 'utf8' });
  return stdout.trim() || stderr;
}

async function esbuilt(out, entry, options) {
  await build({
    entryPoints: [join(program, entry)],
    outdir: join(program, out),
    outExtension: { '.js': options.format === 'esm' ? '.mjs' : '.cjs' },
    bundle: true,
    platform: 'node',
    logLevel: 'silent',
    ...options,
  });
}

const COPIED = { '.node': 'copy' };
const REQUIRE = "import { createRequire } from 'node:module'; const require = createRequire(import.meta.url);";

describe('esbuild', () => {
  test('external', ours, async () => {
    for (const [format, ending] of [
      ['esm', 'mjs'],
      ['cjs', 'cjs'],
    ]) {
      const out = `esbuild-external-${format}`;
      await esbuilt(out, 'app.mjs', { format, external: ['tailrope'] });
      assert.equal(printed(out, `app.${ending}`), 'true');
    }
  });

  test('with the addon copied beside the bundle', ours, async () => {
    await esbuilt('esbuild-cjs', 'app.mjs', { format: 'cjs', loader: COPIED });
    assert.equal(printed('esbuild-cjs', 'app.cjs', { isAlone: true }), 'true');
    await esbuilt('esbuild-esm', 'app.mjs', { format: 'esm', loader: COPIED, banner: { js: REQUIRE } });
    assert.equal(printed('esbuild-esm', 'app.mjs', { isAlone: true }), 'true');
  });

  test('what lacks a configuration is told what to do', ours, async () => {
    await assert.rejects(esbuilt('esbuild-plain', 'app.mjs', { format: 'esm' }), /No loader is configured for ".node"/);
    await esbuilt('esbuild-no-require', 'app.mjs', { format: 'esm', loader: COPIED });
    const said = printed('esbuild-no-require', 'app.mjs', { isAlone: true });
    assert.match(said, /has no `require`\. Mark `tailrope` as external/);
  });
});

describe('other bundlers', () => {
  const place = join(root, 'target/bundlers');
  const at = (name) => createRequire(join(place, 'x.js'))(name);

  before(
    () => {
      if (!isFull) {
        return;
      }
      const lock = 'package-lock.json';
      const ours = new URL(`bundlers/${lock}`, import.meta.url);
      const done = join(place, 'node_modules', lock);
      if (existsSync(done) && readFileSync(done, 'utf8') === readFileSync(ours, 'utf8')) {
        return;
      }
      rmSync(place, { recursive: true, force: true });
      mkdirSync(place, { recursive: true });
      for (const name of ['package.json', lock]) {
        copyFileSync(new URL(`bundlers/${name}`, import.meta.url), join(place, name));
      }
      execFileSync('npm', ['ci', '--ignore-scripts', '--no-audit', '--no-fund'], { cwd: place, stdio: 'ignore' });
      copyFileSync(ours, done);
    },
    { timeout: 300_000 },
  );

  test('webpack, external', full, async () => {
    const stats = await new Promise((resolve, reject) => {
      const config = {
        mode: 'production',
        target: 'node',
        context: program,
        entry: './app.cjs',
        output: { path: join(program, 'webpack'), filename: 'app.cjs' },
        externals: [/^tailrope/],
        externalsType: 'commonjs',
      };
      at('webpack')(config, (error, stats) => (error ? reject(error) : resolve(stats)));
    });
    assert.deepEqual(stats.toJson({ all: false, errors: true, warnings: true }).errors, []);
    assert.equal(printed('webpack', 'app.cjs'), 'true');
  });

  test('rollup, external', full, async () => {
    const bundle = await at('@rollup/wasm-node').rollup({ input: join(program, 'app.mjs'), external: [/^tailrope/] });
    await bundle.write({ file: join(program, 'rollup/app.mjs'), format: 'es' });
    assert.equal(printed('rollup', 'app.mjs'), 'true');
  });

  test('ncc finds the addon by itself', full, async () => {
    for (const [entry, file] of [
      ['app.cjs', 'index.cjs'],
      ['app.mjs', 'index.mjs'],
    ]) {
      const out = `ncc-${file}`;
      const cli = join(place, 'node_modules/@vercel/ncc/dist/ncc/cli.js');
      execFileSync(process.execPath, [cli, 'build', entry, '-o', out], { cwd: program, stdio: 'ignore' });
      assert.equal(printed(out, file, { isAlone: true }), 'true');
    }
  });

  const bun = join(place, 'node_modules/@oven/bun-linux-x64/bin/bun');
  const onItsPlatform =
    process.platform === 'linux' && process.arch === 'x64' ? full : { skip: 'the lock has Bun for linux-x64 alone' };

  test('Bun runs the package, and puts the addon into an executable', onItsPlatform, () => {
    assert.equal(printed('.', 'app.mjs', { command: [bun] }), 'true');
    const args = ['build', '--compile', 'app.mjs', '--outfile', 'bun/app'];
    execFileSync(bun, args, { cwd: program, stdio: 'ignore' });
    assert.equal(printed('bun', 'app', { isAlone: true, command: [] }), 'true');
  });
});
