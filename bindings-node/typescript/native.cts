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

/** Whether this Node is built on musl: a library for glibc may load there, and crash later. */
function isMusl(): boolean {
  const { header } = (process.report?.getReport() ?? {}) as { header?: { glibcVersionRuntime?: string } };
  return header !== undefined && header.glibcVersionRuntime === undefined;
}

function load(): typeof api | undefined {
  try {
    return require('../tailrope.node');
  } catch (error) {
    missing('../tailrope.node', error);
  }
  switch (`${process.platform}-${process.arch}`) {
    case 'darwin-arm64':
      try {
        return require('tailrope-darwin-arm64');
      } catch (error) {
        missing('tailrope-darwin-arm64', error);
      }
      break;
    case 'darwin-x64':
      try {
        return require('tailrope-darwin-x64');
      } catch (error) {
        missing('tailrope-darwin-x64', error);
      }
      break;
    case 'linux-arm64':
      if (isMusl()) {
        try {
          return require('tailrope-linux-arm64-musl');
        } catch (error) {
          missing('tailrope-linux-arm64-musl', error);
        }
        break;
      }
      try {
        return require('tailrope-linux-arm64-gnu');
      } catch (error) {
        missing('tailrope-linux-arm64-gnu', error);
      }
      break;
    case 'linux-x64':
      if (isMusl()) {
        try {
          return require('tailrope-linux-x64-musl');
        } catch (error) {
          missing('tailrope-linux-x64-musl', error);
        }
        break;
      }
      try {
        return require('tailrope-linux-x64-gnu');
      } catch (error) {
        missing('tailrope-linux-x64-gnu', error);
      }
      break;
    case 'win32-x64':
      try {
        return require('tailrope-win32-x64-msvc');
      } catch (error) {
        missing('tailrope-win32-x64-msvc', error);
      }
      break;
  }
  return undefined;
}

export = { loaded: load(), failed };
