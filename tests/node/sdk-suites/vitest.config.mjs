// The checkout's own configuration of one of its test folders, with our classes swapped in.
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

import { LINES } from './lines.mjs';
import { swap } from './swap.mjs';

const { SDK_SUITES_LINE: name, SDK_SUITES_CHECKOUT: checkout, SDK_SUITES_STOCK: isStock } = process.env;
const line = LINES[name];

// vitest runs in the test folder.
const config = line.config ?? (await import(pathToFileURL(join(process.cwd(), 'vitest.config.js')).href)).default;

export default {
  ...config,
  // On a busy machine everything may stand still for some seconds, which are most of the 5 that a test has by default.
  test: { ...config.test, testTimeout: 20_000 },
  plugins: [...(config.plugins ?? []), ...(isStock ? [] : [swap(checkout, line)])],
};
