// Package hosts knows the machines that run environments: it registers them
// after a look at their agent, keeps one provider per host, looks at them for
// the loop, and remembers, for as long as the process lives, when each was
// last seen.
package hosts
