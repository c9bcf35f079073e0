package sshx

import (
	"context"
	"io"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/fusevm/fuse/internal/playguard/observe"
)

// What cut a command short names its end, also when the command's own end, which
// follows from that, is seen first; an exit that came is one all the same.
func TestCut(t *testing.T) {
	closed := make(chan struct{})
	close(closed)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	silent := &Conn{address: "h", done: closed, why: errSilent}
	lives := &Conn{address: "h", done: make(chan struct{})}
	exit := &ssh.ExitError{Waitmsg: ssh.Waitmsg{}}
	for name, c := range map[string]struct {
		conn  *Conn
		ctx   context.Context
		over  chan struct{}
		ended bool
		end   error
		want  observe.Ending // empty: nothing cut it
	}{
		"silence":                        {silent, t.Context(), nil, false, nil, observe.EndedDeadline},
		"silence, seen by its end":       {silent, t.Context(), nil, true, io.EOF, observe.EndedDeadline},
		"the caller":                     {lives, gone, nil, false, nil, observe.EndedDeadline},
		"the caller, seen by its end":    {lives, gone, nil, true, io.EOF, observe.EndedDeadline},
		"too much":                       {lives, t.Context(), closed, false, nil, observe.EndedOutputOver},
		"too much, seen by its end":      {lives, t.Context(), closed, true, errOver, observe.EndedOutputOver},
		"too much of one that succeeded": {silent, gone, closed, true, nil, observe.EndedOutputOver},
		"an exit before the silence":     {silent, gone, nil, true, exit, ""},
		"the end before the silence":     {silent, gone, nil, true, nil, ""},
		"a broken link":                  {lives, t.Context(), nil, true, io.EOF, ""},
	} {
		err := c.conn.cut(c.ctx, c.over, c.ended, c.end)
		if (err != nil) != (c.want != "") || err != nil && EndingOf(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
