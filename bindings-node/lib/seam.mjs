// What Tailrope uses of an SDK, and whether it is there. Looked at when the SDK's part is first used.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

import { isDisabled } from './platform.mjs';
import { state, writeLog } from './runtime.mjs';

/** One line of the SDK, and what is used of it. */
export class Seam {
  #name;
  #oldest;
  #uses;
  #difference;
  #isLooked = false;
  #isTold = false;

  /**
   * `oldest` is the first version that is supported, as `[major, minor]`; `uses` has what is used, by name, and of
   * classes their methods by `Class.method`.
   */
  constructor(name, oldest, uses) {
    this.#name = name;
    this.#oldest = oldest;
    this.#uses = uses;
    state.seams.set(name, this);
  }

  /** The SDK with its version, where that can be read. */
  get found() {
    return [this.#name, this.#version].filter(Boolean).join(' ');
  }

  /** The version of the installed package; nothing where that cannot be told, as in a bundle. */
  get #version() {
    try {
      for (const folder of createRequire(import.meta.url).resolve.paths(this.#name)) {
        try {
          return JSON.parse(readFileSync(join(folder, this.#name, 'package.json'), 'utf8')).version;
        } catch {
          // It may be in the next one.
        }
      }
    } catch {
      // Nothing can be looked up from here.
    }
    return undefined;
  }

  /** How the SDK differs from what Tailrope was written for; nothing where it does not. */
  get difference() {
    if (!this.#isLooked) {
      this.#difference = this.#look();
      this.#isLooked = true;
    }
    return this.#difference;
  }

  #look() {
    const [major, minor] = (this.#version ?? '').match(/\d+/g) ?? [];
    if (Number(major) < this.#oldest[0] || (Number(major) === this.#oldest[0] && Number(minor) < this.#oldest[1])) {
      return 'it is too old. Upgrade it';
    }
    for (const [path, used] of Object.entries(this.#uses)) {
      if (used === undefined) {
        return `it has no ${path}`;
      }
    }
    return undefined;
  }

  /** A class of the SDK's without which there is nothing to fall back to. */
  need(name) {
    if (this.#uses[name] === undefined) {
      throw this.unsupported(this.difference);
    }
    return this.#uses[name];
  }

  /** The error for an SDK that Tailrope does not fit under. */
  unsupported(difference) {
    return Object.assign(new Error(this.#text(difference)), { code: 'unsupported_sdk' });
  }

  #text(difference) {
    const [major, minor] = this.#oldest;
    const supported = `${this.#name} ${major}.${minor} and later ${major}.x`;
    return `Tailrope does not fit under ${this.found} (supported: ${supported}): ${difference}.`;
  }

  /**
   * Whether Tailrope serves under this SDK. Where it does not fit, the first use is an error in the log, or throws
   * where `configure()` was told so.
   */
  get isServed() {
    if (this.difference === undefined) {
      return true;
    }
    if (state.onUnsupported === 'raise') {
      throw this.unsupported(this.difference);
    }
    if (!this.#isTold) {
      this.#isTold = true;
      writeLog('error', this.notice);
    }
    return false;
  }

  /** What the difference means; nothing where there is none. */
  get notice() {
    return (
      this.difference &&
      `${this.#text(this.difference)} The SDK's own transports serve: calls cannot be resumed on lost connections`
    );
  }
}

/** Whether the SDK's own classes serve. */
export function isStock(sdk) {
  return isDisabled() || !sdk.seam.isServed;
}
