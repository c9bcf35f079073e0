// Package sweep decides about orphans: projects on a marquee that are provably
// ours and that no record knows of. It is pure. It errs towards leaving things
// alone: what it sets in motion is at most one operation, which takes an orphan
// out of use and keeps its directory for a day; volumes it never touches.
package sweep
