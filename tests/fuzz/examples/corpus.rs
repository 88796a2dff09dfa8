//! Writes the seeds of the vectors into a folder for each target, where a fuzzer takes them up: `corpus FOLDER`.

use std::path::PathBuf;
use std::{env, fs, io};

use tailrope_fuzz::{TARGETS, of_vectors};

fn main() -> io::Result<()> {
    let folder = PathBuf::from(env::args_os().nth(1).expect("the folder is named"));
    for target in TARGETS {
        let folder = folder.join(target.name);
        fs::create_dir_all(&folder)?;
        for (at, seed) in of_vectors(target.name).into_iter().enumerate() {
            fs::write(folder.join(format!("vector-{at:03}")), seed)?;
        }
    }
    Ok(())
}
