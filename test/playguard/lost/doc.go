// Package lost takes the records away from servers whose playgrounds go on
// running: all of them, or those of the last day.
package lost
