// Package rescan takes back into the records what is on a marquee and that no
// record knows of: one playground, or, after the records were lost, all of them.
// It reads markers and compose files and touches nothing there.
package rescan
