package lab

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
)

// Four things that happen to a leader and its surroundings, in any order, while
// clients create, look, drain and destroy: it is killed, it is stopped past its
// lease and goes on, it loses the database, and the hosts cannot be reached. No
// acknowledged operation is lost, no VM is destroyed by a leader of the past, and
// some order explains all that clients saw.
func TestRandomRuns(t *testing.T) {
	for seed := range testkit.Count(3, 20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(uint64(seed), 1))
			l := newLab(t, 2, "boot=5ms..60ms,remove=1ms..20ms,drain=1ms..20ms")
			stop := make(chan struct{})
			var clients sync.WaitGroup
			for n := range 4 {
				mine := rand.New(rand.NewPCG(uint64(seed), uint64(10+n)))
				clients.Go(func() { l.client(n, mine, stop) })
			}
			ways := []func(*rand.Rand){l.killLeader, l.stopLeader, l.cutDatabase, l.cutHost}
			rnd.Shuffle(len(ways), func(i, j int) { ways[i], ways[j] = ways[j], ways[i] })
			for _, way := range ways {
				l.pass(rnd, 300, 1500)
				way(rnd)
			}
			l.pass(rnd, 300, 1500)
			close(stop)
			clients.Wait()
			l.leader()
			l.judge()
		})
	}
}

// pass lets real time pass: there is nothing to wait for.
func (l *lab) pass(rnd *rand.Rand, least, most int) {
	<-time.After(time.Duration(least+rnd.IntN(most-least)) * time.Millisecond)
}

func (l *lab) killLeader(rnd *rand.Rand) {
	n := l.leader()
	l.server(n).Kill()
	l.pass(rnd, 500, 3000)
	l.again(n)
}

func (l *lab) stopLeader(rnd *rand.Rand) {
	s := l.server(l.leader())
	s.Freeze()
	l.pass(rnd, 4000, 6500) // past the lease, and past the slack of the oracle
	s.Thaw()
}

func (l *lab) cutDatabase(rnd *rand.Rand) {
	n := l.leader()
	l.toDB[n].Cut()
	l.pass(rnd, 500, 4000)
	l.toDB[n].Heal()
}

func (l *lab) cutHost(rnd *rand.Rand) {
	l.leader()
	link := l.links[rnd.IntN(len(l.links))]
	link.Cut()
	l.pass(rnd, 1000, 4000)
	link.Heal()
}

// inUse is how many environments there are when the leader is killed.
const inUse = 1000

// A leader with a thousand environments is killed under a load of creates:
// every 201 that a client got is there, and the next leader takes a create
// within two lease periods and a second.
func TestKillUnderLoad(t *testing.T) {
	l := newLab(t, 2, "vms=4000")
	first := l.leader()
	var next atomic.Int64
	var made sync.Map
	create := func(s int) bool {
		task := fmt.Sprint("load-", next.Add(1))
		a, err := l.server(s).Create(task, "")
		if err != nil || a.Status != http.StatusCreated {
			return false
		}
		made.Store(task, true)
		return true
	}
	var workers sync.WaitGroup
	for range 16 {
		workers.Go(func() {
			for next.Load() < inUse {
				create(first)
			}
		})
	}
	workers.Wait()

	stop := make(chan struct{})
	var killed, served atomic.Int64
	began := time.Now()
	for n := range 8 {
		workers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				asked := time.Since(began)
				if k := killed.Load(); create(n%2) && k > 0 && int64(asked) > k && served.Load() <= k {
					served.Store(int64(time.Since(began)))
				}
			}
		})
	}
	// A machine that has other things to do may be late once, not each time.
	took, bar := time.Hour, 2*leasePeriod+time.Second
	for try := 0; try < 3 && took > bar; try++ {
		if try > 0 {
			l.again(first)
			l.server(first).WaitStandby()
			first = 1 - first
		}
		<-time.After(500 * time.Millisecond)
		starved := testkit.Starved(t, l.server(1-first).PID())
		killed.Store(int64(time.Since(began)))
		l.server(first).Signal(syscall.SIGKILL)
		testkit.Eventually(t, 4*time.Minute, "a create is served after the kill", func() bool { return served.Load() > killed.Load() })
		took = time.Duration(served.Load() - killed.Load())
		without := starved()
		t.Logf("first served create %v after the kill, %v of it without a processor (bar %v)", took, without, bar)
		took -= without
	}
	<-time.After(300 * time.Millisecond)
	close(stop)
	workers.Wait()
	if took > bar {
		t.Errorf("the first create was served after %v", took)
	}
	l.again(first)
	var there map[string]string
	testkit.Eventually(t, 3*time.Minute, "creates that were cut short are undone", func() bool {
		var err error
		there, err = l.server(1 - first).Environments()
		if err != nil {
			return false
		}
		for _, state := range there {
			if state != "running" {
				return false
			}
		}
		return len(l.holds()) == len(there)
	})
	count := 0
	made.Range(func(task, _ any) bool {
		count++
		if name, _ := task.(string); there[name] != "running" {
			t.Errorf("%s was acknowledged and is %q", name, there[name])
		}
		return true
	})
	t.Logf("%d acknowledged, %d there", count, len(there))
	if out := l.server(1 - first).Output(); strings.Contains(out, "panic") {
		t.Error("the next leader panicked")
	}
}
