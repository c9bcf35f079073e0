package sshx

import (
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/sshx/sshdtest"
)

// A connection that is asked for just when it has been idle for long enough stays.
func TestAskedForAsItExpires(t *testing.T) {
	s := sshdtest.Start(t, sshdtest.Options{})
	p := NewPool(Timeouts{Dial: time.Minute, Handshake: time.Minute, Session: time.Minute})
	t.Cleanup(p.Close)
	c, err := p.Conn(t.Context(), "mq1", Target{Address: s.Address, User: s.User, HostKey: s.HostKey, Keys: [][]byte{s.Key}})
	if err != nil {
		t.Fatal(err)
	}
	p.expire("mq1", c) // by a timer that fired before it was asked for
	if _, err := c.Run(t.Context(), Command{Line: "true"}); err != nil {
		t.Errorf("it was let go: %v", err)
	}
	p.mu.Lock()
	p.links["mq1"].used = time.Now().Add(-IdleAfter)
	p.mu.Unlock()
	p.expire("mq1", c)
	<-c.Done()
}
