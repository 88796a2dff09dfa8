// The published packages, and programs in whose folders they are installed.
import { execFileSync, spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before } from 'node:test';
import { fileURLToPath } from 'node:url';

export const root = fileURLToPath(new URL('../../../', import.meta.url));
export let folder;
/** Their names. */
export let packages;

before(() => {
  folder = mkdtempSync(join(tmpdir(), 'tailrope-packages-'));
  execFileSync(process.execPath, [join(root, 'bindings-node/pack.mjs'), join(folder, 'npm')]);
  packages = ['tailrope', ...readdirSync(join(folder, 'npm/@tailrope')).map((name) => `@tailrope/${name}`)];
});

after(() => rmSync(folder, { recursive: true, force: true }));

/** A program's folder in which these packages are installed, beside the SDKs. */
export function installed(name, ...names) {
  const program = join(folder, name);
  mkdirSync(join(program, 'node_modules'), { recursive: true });
  for (const each of names) {
    cpSync(join(folder, 'npm', each), join(program, 'node_modules', each), { recursive: true });
  }
  symlinkSync(join(root, 'node_modules/@modelcontextprotocol'), join(program, 'node_modules/@modelcontextprotocol'));
  return program;
}

export function run(program, file, source, flags = []) {
  writeFileSync(join(program, file), source);
  const { status, stdout, stderr } = spawnSync(process.execPath, [...flags, file], { cwd: program, encoding: 'utf8' });
  return { status, stdout: stdout.trim(), stderr };
}
