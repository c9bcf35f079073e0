package sshx_test

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/sshx"
	"github.com/fusevm/fuse/internal/playguard/sshx/sshdtest"
	"github.com/fusevm/fuse/internal/testkit"
)

// stuck is a server that answers whether it lives, and opens so many sessions of a
// connection and no more. What runs in them ends with release.
func stuck(t *testing.T, opens int, release <-chan struct{}) sshx.Target {
	t.Helper()
	key := sshdtest.NewKey(t)
	signer, err := ssh.ParsePrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	config := &ssh.ServerConfig{NoClientAuth: true}
	config.AddHostKey(signer)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	session := func(ch ssh.NewChannel) {
		c, requests, err := ch.Accept()
		if err != nil {
			return
		}
		for r := range requests {
			_ = r.Reply(true, nil)
			if r.Type == "exec" {
				_, _ = c.Write([]byte("\n"))
				<-release
				_, _ = c.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{}))
				_ = c.Close()
			}
		}
	}
	serving.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer nc.Close()
				_, channels, requests, err := ssh.NewServerConn(nc, config)
				if err != nil {
					return
				}
				serving.Go(func() { ssh.DiscardRequests(requests) }) // a refusal is an answer
				left := opens
				for ch := range channels {
					if left--; left >= 0 {
						serving.Go(func() { session(ch) })
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		serving.Wait()
	})
	return sshx.Target{Address: l.Addr().String(), User: "u", HostKey: string(ssh.MarshalAuthorizedKey(signer.PublicKey())), Keys: [][]byte{key}}
}

// A host that lives and opens no sessions is reached anew for each that it did not
// open, and not held on to for ever.
func TestNoSessionOpens(t *testing.T) {
	scaled(t, 100*time.Millisecond, func(limit time.Duration) error {
		limits := patient
		limits.Session, limits.KeepAlive = limit, limit
		p := sshx.NewPool(limits)
		defer p.Close()
		to := stuck(t, 0, nil)
		for range 2 {
			c, err := p.Conn(t.Context(), "mq1", to)
			if err != nil {
				return err
			}
			_, err = c.Run(t.Context(), sshx.Command{Line: "true"})
			wantEnding(t, err, observe.EndedDeadline)
			<-c.Done()
		}
		return nil
	})
}

// What goes on over such a connection goes on; what begins gets another one.
func TestNoMoreSessionsOpen(t *testing.T) {
	scaled(t, 200*time.Millisecond, func(limit time.Duration) error {
		limits := patient
		limits.Session, limits.KeepAlive = limit, limit
		p := sshx.NewPool(limits)
		defer p.Close()
		release := make(chan struct{})
		free := sync.OnceFunc(func() { close(release) })
		defer free()
		to := stuck(t, 1, release)
		c, err := p.Conn(t.Context(), "mq1", to)
		if err != nil {
			return err
		}
		began, ended := &signalWriter{c: make(chan struct{})}, make(chan error, 1)
		go func() {
			_, err := c.Run(t.Context(), sshx.Command{Line: "tail", Stream: true, Stdout: began})
			ended <- err
		}()
		select {
		case <-began.c:
		case err := <-ended:
			return fmt.Errorf("it ended before it began: %w", err)
		}
		_, err = c.Run(t.Context(), sshx.Command{Line: "true"})
		wantEnding(t, err, observe.EndedDeadline)
		testkit.Eventually(t, time.Minute, "nothing begins on it any more", func() bool { return !c.Usable() })
		other, err := p.Conn(t.Context(), "mq1", to)
		if err != nil {
			return err
		}
		if other == c {
			t.Error("new work gets the connection that opens no session")
		}
		select {
		case err := <-ended:
			return errors.Join(errors.New("what went on was cut"), err)
		default:
		}
		free()
		if err := <-ended; err != nil {
			return err
		}
		<-c.Done()
		return nil
	})
}
