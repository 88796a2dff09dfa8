// Builds the native half and puts it where lib/native.cjs looks for it.
import { execFileSync } from 'node:child_process';
import { copyFileSync, renameSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));
const root = dirname(here);
const files = { darwin: 'libtailrope_node.dylib', win32: 'tailrope_node.dll' };

// The tests need more than what is published, and sooner: what is published has the profile `dist`.
const { TAILROPE_CARGO_FEATURES: features, TAILROPE_CARGO_PROFILE: profile = 'dist' } = process.env;
const more = features ? ['--features', features] : [];
execFileSync('cargo', ['build', '--profile', profile, '--locked', '-p', 'tailrope-node', ...more], {
  cwd: root,
  stdio: 'inherit',
});
const metadata = execFileSync('cargo', ['metadata', '--format-version', '1', '--no-deps', '--locked'], {
  cwd: root,
  maxBuffer: 64 << 20,
});
// Cargo's folder for the profile `dev` has another name.
const folder = profile === 'dev' ? 'debug' : profile;
const built = join(JSON.parse(metadata).target_directory, folder, files[process.platform] ?? 'libtailrope_node.so');
const target = join(here, 'tailrope.node');
// A process that has the old file loaded keeps it: overwriting it in place would crash that process.
copyFileSync(built, `${target}.new`);
renameSync(`${target}.new`, target);
