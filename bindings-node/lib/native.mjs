// Loads the native half.
import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);

function load() {
  try {
    return require('../tailrope.node');
  } catch (cause) {
    throw new Error('The native half of tailrope is missing or does not fit: run `npm run build` in its folder', {
      cause,
    });
  }
}

export const { Engine, Refusal } = load();
