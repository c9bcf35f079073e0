package sshdtest

import (
	"net"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh/agent"
)

// Agent serves an SSH agent until the test ends and returns its socket. One
// without keys takes requests and never answers.
func Agent(t testing.TB, keys agent.Agent) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "agent")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	over := make(chan struct{})
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				if keys == nil {
					<-over
					return
				}
				_ = agent.ServeAgent(keys, conn) // ends with the connection
			})
		}
	})
	t.Cleanup(func() {
		close(over)
		l.Close()
		serving.Wait()
	})
	return socket
}
