// Loads the native half: built in this folder, or from the package of this platform.
import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);

/** `linux-x64-gnu`, `darwin-arm64`, ...: what the packages with the native half are named after. */
function platform() {
  const { platform: os, arch, report } = process;
  if (os === 'linux') {
    // The network part of a report is slow and not needed.
    report.excludeNetwork = true;
    return `${os}-${arch}-${report.getReport().header.glibcVersionRuntime ? 'gnu' : 'musl'}`;
  }
  return os === 'win32' ? `${os}-${arch}-msvc` : `${os}-${arch}`;
}

function load() {
  try {
    return require('../tailrope.node');
  } catch (local) {
    const name = `tailrope-${platform()}`;
    try {
      return require(name);
    } catch (cause) {
      const message =
        `The native half of tailrope is missing or does not fit: neither package ${name} (${cause.message}) nor a ` +
        `build of its own (${local.message}). Reinstall with optional dependencies, or run \`npm run build\` in its folder`;
      throw Object.assign(new Error(message, { cause }), { code: 'native_missing' });
    }
  }
}

export const { Engine, Refusal } = load();
