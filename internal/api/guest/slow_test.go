package guest

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
)

// TestASlowReaderCostsNoMemory lets a reader stand still until the process that
// writes does so too, then read on: all output comes, and neither server, host
// agent nor guest agent, which are all in this process, has kept it.
func TestASlowReaderCostsNoMemory(t *testing.T) {
	w := newWorld(t)
	size := int64(testkit.Count(64<<20, 1<<30))
	w.process("POST", "/processes", fmt.Sprintf(`{"id":"a","hold":true,"keep_bytes":262144,"cmd":["head","-c","%d","/dev/zero"]}`, size), 201)
	most, stop := peak()
	res, err := http.Get(w.url + "/v1/environments/fuse-t/processes/a/output?follow=1&stream=stdout")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	last, quiet := int64(0), 0
	testkit.Eventually(t, 5*time.Minute, "the process is held up", func() bool {
		now := w.process("GET", "/processes/a", "", 200).Stdout.End
		if now != last || now == 0 {
			last, quiet = now, 0
		}
		quiet++
		return quiet > 50
	})
	if last >= size/2 {
		t.Errorf("%d bytes were taken from the process for a reader that took none", last)
	}
	n, err := io.Copy(io.Discard, res.Body)
	stop()
	if err != nil || n != size {
		t.Errorf("%d bytes of %d came: %v", n, size, err)
	}
	if grown := most.Load(); grown > 24<<20 {
		t.Errorf("memory grew by %d bytes for output of %d", grown, size)
	} else {
		t.Logf("%d MiB to a reader that stood still at %d KiB, memory grew by %d KiB at most", size>>20, last>>10, grown>>10)
	}
}
