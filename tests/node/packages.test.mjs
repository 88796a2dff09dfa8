// The published form: a package without native half, and one for this platform with it.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';

import { publint } from 'publint';
import { formatMessage } from 'publint/utils';
import { TailropeError } from 'tailrope';
import * as esm from 'tailrope/mcp';
import { buildServer, connectServer } from '../servers/node/tools.mjs';
import { listen } from '../servers/node/transports.mjs';
import { folder, installed, packages, root, run } from './kit/packed.mjs';
import { counts, Peer, upTo } from './kit/raw.mjs';
import { ours, test } from './kit/test.mjs';

const ENTRIES = ['tailrope', 'tailrope/client', 'tailrope/mcp', 'tailrope/mcp-v1', 'tailrope/testing'];

test('the packages are laid out as their consumers need', ours, async () => {
  assert.equal(packages.length, 2);
  for (const name of packages) {
    const { messages, pkg } = await publint({ pkgDir: join(folder, 'npm', name), strict: true });
    assert.deepEqual(
      messages.map((message) => formatMessage(message, pkg)),
      [],
    );
  }
  const manifest = JSON.parse(readFileSync(join(folder, 'npm/tailrope/package.json'), 'utf8'));
  // One version of all that belongs together, also of what is made on other machines.
  const platforms = JSON.parse(readFileSync(join(root, 'bindings-node/platforms.json'), 'utf8'));
  assert.deepEqual(
    manifest.optionalDependencies,
    Object.fromEntries(Object.keys(platforms).map((platform) => [`@tailrope/${platform}`, manifest.version])),
  );
  const [, native] = packages;
  assert.equal(JSON.parse(readFileSync(join(folder, 'npm', native, 'package.json'), 'utf8')).version, manifest.version);
  // Nothing is built where it is installed.
  assert.equal(manifest.scripts, undefined);
});

test('both module forms load with the platforms package', ours, () => {
  const program = installed('complete', ...packages);
  const list = (lines) => `console.log(JSON.stringify([${lines.join(', ')}]));\n`;
  const imported = run(program, 'a.mjs', list(ENTRIES.map((name) => `Object.keys(await import('${name}')).sort()`)));
  const required = run(program, 'a.cjs', list(ENTRIES.map((name) => `Object.keys(require('${name}')).sort()`)));
  assert.equal(imported.status, 0, imported.stderr);
  assert.equal(required.status, 0, required.stderr);
  assert.equal(required.stdout, imported.stdout);
  const names = JSON.parse(imported.stdout);
  assert.ok(names.every((exported) => exported.includes('TailropeError')));
  assert.ok(names[2].includes('NodeStreamableHTTPServerTransport'));
});

test('a missing native half is named', ours, () => {
  const program = installed('partial', 'tailrope');
  const source = "import('tailrope').catch((error) => console.log(error.code, error.message));\n";
  const { stdout } = run(program, 'a.mjs', source);
  const native = packages.find((name) => name !== 'tailrope');
  assert.match(stdout, /^native_missing /);
  assert.match(stdout, /no package with it is installed, or a bundler left it behind/);
  assert.ok(stdout.includes(native));
});

test('each platform is looked for by its name, and the others are named where there is no package', ours, () => {
  const program = installed('platforms', 'tailrope');
  const elsewhere = (platform, arch, libc = '') => {
    const header = libc === 'gnu' ? { glibcVersionRuntime: '2.36' } : {};
    const source = `
      Object.defineProperty(process, 'platform', { value: '${platform}' });
      Object.defineProperty(process, 'arch', { value: '${arch}' });
      process.report.getReport = () => (${JSON.stringify({ header })});
      import('tailrope').catch((error) => console.log(error.message));
    `;
    return run(program, 'a.mjs', source).stdout;
  };
  const platforms = Object.keys(JSON.parse(readFileSync(join(root, 'bindings-node/platforms.json'), 'utf8')));
  for (const platform of platforms) {
    assert.match(elsewhere(...platform.split('-')), new RegExp(`It was looked for as .*@tailrope/${platform} `));
  }
  const message = elsewhere('linux', 's390x', 'gnu');
  assert.match(message, /there is no package for linux on s390x/);
  assert.ok(message.includes(platforms.join(', ')), message);
});

test('the reason is named where Node loads no addons', ours, () => {
  const program = installed('forbidden', ...packages);
  const source = "import('tailrope').catch((error) => console.log(error.code, error.message));\n";
  const permission = process.allowedNodeEnvironmentFlags.has('--permission')
    ? '--permission'
    : '--experimental-permission';
  for (const flags of [['--no-addons'], [permission, '--allow-fs-read=*']]) {
    assert.match(
      run(program, 'a.mjs', source, flags).stdout,
      /^native_missing .* may not load native addons\. .*--allow-addons/,
    );
  }
});

test('nothing of the process is changed by loading it', ours, () => {
  const program = installed('unchanged', ...packages);
  const source = "await import('tailrope');\nconsole.log(process.report.excludeNetwork);\n";
  assert.equal(run(program, 'a.mjs', source).stdout, 'false');
});

test('the command comes with the package, and needs no SDK', ours, () => {
  const program = installed('command', ...packages);
  const { bin } = JSON.parse(readFileSync(join(program, 'node_modules/tailrope/package.json'), 'utf8'));
  const command = join(program, 'node_modules/tailrope', bin.tailrope);
  const { status, stdout, stderr } = spawnSync(process.execPath, [command, '--help'], { encoding: 'utf8' });
  assert.equal(status, 0, stderr);
  assert.match(stdout, /^usage: tailrope COMMAND/);
});

test('both module forms in one process are one tailrope', ours, async (t) => {
  const require = createRequire(import.meta.url);
  const cjs = require('tailrope/mcp');
  assert.notEqual(cjs.EventStore, esm.EventStore);
  assert.throws(() => cjs.configure({ retryMs: -1 }), TailropeError);
  const transport = new cjs.NodeStreamableHTTPServerTransport({
    sessionIdGenerator: () => 'one',
    // A store of the other form is still one of ours.
    eventStore: new esm.EventStore('memory:', { retryMs: 40 }),
  });
  await connectServer('v2', transport);
  const host = await listen((req, res) => transport.handleRequest(req, res));
  t.after(async () => {
    await transport.close();
    await host.close();
  });
  const peer = await Peer.open(host.port);
  const first = await (await peer.script('emit 2', 'close', 'emit 2')).rest();
  assert.equal(first[0].retry, 40);
  const rest = await (await peer.resume(first.at(-1).id)).rest();
  assert.deepEqual(counts([...first, ...rest]), upTo(4));
  assert.equal(esm.stats().sessions, 1);
  assert.deepEqual(cjs.stats(), esm.stats());
});

test('two installed copies in one process are two', ours, async (t) => {
  const [one, two] = ['one', 'two'].map((name) =>
    createRequire(join(installed(name, ...packages), 'a.js'))('tailrope/mcp'),
  );
  const transport = new two.NodeStreamableHTTPServerTransport({
    sessionIdGenerator: () => 'one',
    // To this copy it is a store that a user wrote.
    eventStore: new one.EventStore('memory:'),
  });
  await connectServer('v2', transport);
  const host = await listen((req, res) => transport.handleRequest(req, res));
  t.after(async () => {
    await transport.close();
    await host.close();
  });
  const peer = await Peer.open(host.port);
  const first = await (await peer.script('emit 2', 'close', 'emit 2')).rest();
  const rest = await (await peer.resume(first.at(-1).id)).rest();
  assert.deepEqual(counts([...first, ...rest]), upTo(4));
  assert.deepEqual([one.stats().sessions, two.stats().sessions], [0, 1]);
});

test('the SDKs own transport keeps its events in our store', ours, async (t) => {
  const { NodeStreamableHTTPServerTransport } = await import('@modelcontextprotocol/node');
  const store = new esm.EventStore('memory:', { maxEventsPerStream: 3 });
  const transport = new NodeStreamableHTTPServerTransport({ sessionIdGenerator: () => 'stock', eventStore: store });
  await buildServer('v2').connect(transport);
  const host = await listen((req, res) => transport.handleRequest(req, res));
  t.after(async () => {
    await transport.close();
    await host.close();
  });
  const peer = await Peer.open(host.port);
  const first = await (await peer.script('emit 1', 'close', 'emit 2')).rest();
  const rest = await (await peer.resume(first.at(-1).id)).untilTerminal();
  assert.deepEqual(counts([...first, ...rest]), upTo(3));
  // The bound has dropped the first event after it by now.
  await assert.rejects(store.replayEventsAfter(first[0].id, { send() {} }), /not found/i);
});

test('the types of an entry need no package that its users do not have', ours, () => {
  const { exports } = JSON.parse(readFileSync(join(folder, 'npm/tailrope/package.json'), 'utf8'));
  const needed = (file, seen) => {
    const types = readFileSync(file, 'utf8');
    const named = [...types.matchAll(/(?:from |import\()['"](.*?)['"]/g)].map(([, name]) => name);
    const own = named
      .filter((name) => name.startsWith('.'))
      .map((name) => join(dirname(file), name.replace(/js$/, 'ts')));
    const files = own.map((name) => name.replace(/\.([cm]ts)$/, '.d.$1')).filter((name) => !seen.has(name));
    files.forEach((name) => seen.add(name));
    return [...named.filter((name) => !name.startsWith('.')), ...files.flatMap((name) => needed(name, seen))];
  };
  const sdks = {
    './mcp': ['@modelcontextprotocol/server', '@modelcontextprotocol/node'],
    './mcp-v1': ['@modelcontextprotocol/sdk'],
  };
  for (const [entry, { import: esm, require: cjs }] of Object.entries(exports)) {
    for (const { types } of [esm, cjs].filter(Boolean)) {
      const foreign = needed(join(folder, 'npm/tailrope', types), new Set());
      const theirs = ['node:', ...(sdks[entry] ?? [])];
      const others = foreign.filter((name) => !theirs.some((start) => name.startsWith(start)));
      assert.deepEqual(others, [], types);
    }
  }
});

test('the native half is that of the C library that Node is built on', ours, () => {
  const program = installed('libraries', 'tailrope');
  const library = (name) => join(program, 'node_modules/@tailrope', `linux-${process.arch}-${name}`);
  for (const name of ['gnu', 'musl']) {
    mkdirSync(library(name), { recursive: true });
    writeFileSync(join(library(name), 'index.js'), `console.log('${name}'); throw new Error('only looked for');`);
  }
  for (const [name, header] of [
    ['gnu', { glibcVersionRuntime: '2.36' }],
    ['musl', {}],
    ['musl\ngnu', undefined],
  ]) {
    const source = `
      Object.defineProperty(process, 'platform', { value: 'linux' });
      process.report.getReport = () => (${JSON.stringify({ header })});
      await import('tailrope').catch(() => {});
    `;
    assert.equal(run(program, 'a.mjs', source).stdout, name);
  }
});
