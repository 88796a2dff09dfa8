// Lays out what is published: the package without native half, and packages of platforms with it.
//
//   node bindings-node/pack.mjs [DIRECTORY [main | PLATFORM=ADDON ...]]
//
// Without more words: in dist/npm, the main package, and that of this platform with what build.mjs has built.
//
// The main package asks for exactly its own version of every platform's package, so it is published last.
import { copyFileSync, cpSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));
const root = dirname(here);
const [folder, ...words] = process.argv.slice(2);
const out = resolve(folder ?? join(root, 'dist', 'npm'));
const platforms = JSON.parse(readFileSync(join(here, 'platforms.json'), 'utf8'));
const licences = ['LICENSE-APACHE', 'LICENSE-MIT'];
// What the native half is made of. `make dist` writes these.
const parts = ['THIRD-PARTY-LICENSES.txt', 'sbom.cdx.json'].filter((name) => existsSync(join(root, name)));

function write(folder, manifest, files) {
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'package.json'), `${JSON.stringify(manifest, undefined, 2)}\n`);
  for (const name of files) {
    copyFileSync(join(root, name), join(folder, name));
  }
}

/** Of the machine that this runs on. */
function thisPlatform() {
  const { platform, arch, report } = process;
  const abi = { linux: report.getReport().header.glibcVersionRuntime ? '-gnu' : '-musl', win32: '-msvc' };
  return `${platform}-${arch}${abi[platform] ?? ''}`;
}

const [, version] = /^\[workspace\.package\]\nversion = "(.*)"$/m.exec(readFileSync(join(root, 'Cargo.toml'), 'utf8'));
const {
  private: _,
  scripts,
  devDependencies,
  ...manifest
} = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
const { name, description, keywords, homepage, bugs, repository, license, author, engines } = manifest;
const access = { publishConfig: { access: 'public', provenance: true } };
rmSync(out, { recursive: true, force: true });

/** Without native half. */
function packMain() {
  const packages = Object.keys(platforms).map((platform) => [`@${name}/${platform}`, version]);
  const optionalDependencies = Object.fromEntries(packages);
  const main = join(out, name);
  write(main, { name, version, ...manifest, optionalDependencies, ...access }, ['README.md', ...licences]);
  for (const form of ['lib', 'cjs']) {
    cpSync(join(here, form), join(main, 'bindings-node', form), { recursive: true });
  }
}

function packPlatform(platform, addon) {
  if (platforms[platform] === undefined) {
    throw new Error(`no package is published for ${platform}`);
  }
  const { target, ...where } = platforms[platform];
  const files = [...parts, ...licences];
  const about = {
    name: `@${name}/${platform}`,
    version,
    description: `${description} (native half for ${platform})`,
    ...{ keywords, homepage, bugs, repository, license, author, engines },
    ...where,
    type: 'commonjs',
    main: 'tailrope.node',
    files: ['tailrope.node', ...files],
    ...access,
  };
  write(join(out, about.name), about, files);
  copyFileSync(addon, join(out, about.name, 'tailrope.node'));
}

for (const word of words.length > 0 ? words : ['main', `${thisPlatform()}=${join(here, 'tailrope.node')}`]) {
  if (word === 'main') {
    packMain();
  } else {
    packPlatform(...word.split('='));
  }
  console.log(`${out}: ${word.split('=')[0]} ${version}`);
}
