// Package quota bounds what one owner, or one API key of it, may hold at a time.
// Usage is never counted up and down: it is the sum over the rows there are,
// taken in the very transaction that adds the next one. So nothing can be
// counted twice or forgotten, a retry that finds its row costs nothing, and a
// restart changes nothing.
package quota
