// Loads the native half: built in this folder, or from the package of this platform.
//
// CommonJS with literal names, each in a `try` of its own: so bundlers find the file, or leave the name as it is, and
// take no offence at packages of other platforms.
import type * as api from './native-api.cjs';

/** Where it was looked for in vain, and why it was not taken from there. */
const failed: { name: string; error: unknown }[] = [];

function missing(name: string, error: unknown) {
  failed.push({ name, error });
}

/** Those that are published. */
const platforms = [
  'darwin-arm64',
  'darwin-x64',
  'linux-arm64-gnu',
  'linux-arm64-musl',
  'linux-x64-gnu',
  'linux-x64-musl',
  'win32-arm64-msvc',
  'win32-x64-msvc',
];

/**
 * Whose package may be loaded, the first one first. Where the C library is not known, that for musl is: a library for musl
 * does not load on glibc, but one for glibc may load on musl, and crash later.
 */
function candidates(): string[] {
  const system = `${process.platform}-${process.arch}`;
  if (process.platform === 'win32') {
    return [`${system}-msvc`];
  }
  if (process.platform !== 'linux') {
    return [system];
  }
  const { header } = (process.report?.getReport() ?? {}) as { header?: { glibcVersionRuntime?: string } };
  const libraries =
    header === undefined ? ['musl', 'gnu'] : [header.glibcVersionRuntime === undefined ? 'musl' : 'gnu'];
  return libraries.map((library) => `${system}-${library}`);
}

function load(): typeof api | undefined {
  try {
    return require('../tailrope.node');
  } catch (error) {
    missing('../tailrope.node', error);
  }
  for (const platform of candidates()) {
    switch (platform) {
      case 'darwin-arm64':
        try {
          return require('@tailrope/darwin-arm64');
        } catch (error) {
          missing('@tailrope/darwin-arm64', error);
        }
        break;
      case 'darwin-x64':
        try {
          return require('@tailrope/darwin-x64');
        } catch (error) {
          missing('@tailrope/darwin-x64', error);
        }
        break;
      case 'linux-arm64-gnu':
        try {
          return require('@tailrope/linux-arm64-gnu');
        } catch (error) {
          missing('@tailrope/linux-arm64-gnu', error);
        }
        break;
      case 'linux-arm64-musl':
        try {
          return require('@tailrope/linux-arm64-musl');
        } catch (error) {
          missing('@tailrope/linux-arm64-musl', error);
        }
        break;
      case 'linux-x64-gnu':
        try {
          return require('@tailrope/linux-x64-gnu');
        } catch (error) {
          missing('@tailrope/linux-x64-gnu', error);
        }
        break;
      case 'linux-x64-musl':
        try {
          return require('@tailrope/linux-x64-musl');
        } catch (error) {
          missing('@tailrope/linux-x64-musl', error);
        }
        break;
      case 'win32-arm64-msvc':
        try {
          return require('@tailrope/win32-arm64-msvc');
        } catch (error) {
          missing('@tailrope/win32-arm64-msvc', error);
        }
        break;
      case 'win32-x64-msvc':
        try {
          return require('@tailrope/win32-x64-msvc');
        } catch (error) {
          missing('@tailrope/win32-x64-msvc', error);
        }
        break;
    }
  }
  return undefined;
}

export = { loaded: load(), failed, platforms };
