// Package sweeper is the last phase of a pass over a marquee: it carries out
// what package sweep decides about orphans, and holds what operators ask of it.
// Nothing is set aside on a marquee that nobody armed.
package sweeper
