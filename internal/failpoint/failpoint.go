// Package failpoint lets tests fail, pause or kill a process at a named place.
// Hit is a no-op that the compiler removes unless the binary is built with the
// tag "failpoints"; with the tag it obeys the environment variable
// FUSE_FAILPOINTS, a list of name=action joined by "|":
//
//	name=error        Hit returns an error that names the failpoint
//	name=exit         the process kills itself with SIGKILL
//	name=pause(path)  path is created; Hit returns once path has been removed
//
// "name@3=action" acts on the third hit alone; without it every hit counts.
package failpoint

// Env is the environment variable that a binary built with the tag reads.
const Env = "FUSE_FAILPOINTS"
