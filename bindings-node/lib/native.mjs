// Loads the native half: built in this folder, or from the package of this platform.
import { createRequire } from 'node:module';

import { platform } from './platform.mjs';

const require = createRequire(import.meta.url);

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

export const { ClientOptions, ClientStream, Engine, Refusal, Store } = load();
