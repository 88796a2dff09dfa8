// Lays out what is published: the package without native half, and the package of this platform with it.
//
//   node bindings-node/pack.mjs [DIRECTORY]      (default: dist/npm)
//
// The other platforms' packages are made by running this on them; `npm publish` each folder, the main one last.
import { copyFileSync, cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));
const root = dirname(here);
const out = resolve(process.argv[2] ?? join(root, 'dist', 'npm'));
const licences = ['LICENSE-APACHE', 'LICENSE-MIT'];
const platforms = {
  'darwin-arm64': { os: ['darwin'], cpu: ['arm64'] },
  'darwin-x64': { os: ['darwin'], cpu: ['x64'] },
  'linux-arm64-gnu': { os: ['linux'], cpu: ['arm64'], libc: ['glibc'] },
  'linux-arm64-musl': { os: ['linux'], cpu: ['arm64'], libc: ['musl'] },
  'linux-x64-gnu': { os: ['linux'], cpu: ['x64'], libc: ['glibc'] },
  'linux-x64-musl': { os: ['linux'], cpu: ['x64'], libc: ['musl'] },
  'win32-x64-msvc': { os: ['win32'], cpu: ['x64'] },
};

function write(folder, manifest) {
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'package.json'), `${JSON.stringify(manifest, undefined, 2)}\n`);
  for (const licence of licences) {
    copyFileSync(join(root, licence), join(folder, licence));
  }
}

const { scripts, devDependencies, ...manifest } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
const { version, license, author, engines, description } = manifest;
rmSync(out, { recursive: true, force: true });

const main = join(out, 'tailrope');
const optionalDependencies = Object.fromEntries(Object.keys(platforms).map((name) => [`tailrope-${name}`, version]));
write(main, {
  ...manifest,
  files: manifest.files.filter((name) => !name.endsWith('.node')),
  optionalDependencies,
});
for (const folder of ['lib', 'cjs']) {
  cpSync(join(here, folder), join(main, 'bindings-node', folder), { recursive: true });
}
copyFileSync(join(root, 'README.md'), join(main, 'README.md'));

const { platform: os, arch, report } = process;
const abi = { linux: report.getReport().header.glibcVersionRuntime ? '-gnu' : '-musl', win32: '-msvc' }[os] ?? '';
const platform = `${os}-${arch}${abi}`;
if (platforms[platform] === undefined) {
  throw new Error(`no package is published for ${platform}`);
}
const name = `tailrope-${platform}`;
write(join(out, name), {
  name,
  version,
  description: `${description} (native half for ${platform})`,
  license,
  author,
  engines,
  ...platforms[platform],
  type: 'commonjs',
  main: 'tailrope.node',
  files: ['tailrope.node', ...licences],
});
copyFileSync(join(here, 'tailrope.node'), join(out, name, 'tailrope.node'));
console.log(`${out}: tailrope, ${name} ${version}`);
