package postgres

import "time"

// Use is the use of the connections to the database, those of both pools.
type Use struct {
	InUse, Idle, Max int
	Waits            int64         // times that one had to be waited for
	Waited           time.Duration // and for how long in all
}

// Use reads the pools; it does no I/O. All is zero before the first connection.
func (j *Journal) Use() (u Use) {
	d, err := j.database()
	if err != nil {
		return u
	}
	for _, s := range []interface {
		AcquiredConns() int32
		IdleConns() int32
		MaxConns() int32
		EmptyAcquireCount() int64
		EmptyAcquireWaitTime() time.Duration
	}{d.write.Stat(), d.read.Stat()} {
		u.InUse += int(s.AcquiredConns())
		u.Idle += int(s.IdleConns())
		u.Max += int(s.MaxConns())
		u.Waits += s.EmptyAcquireCount()
		u.Waited += s.EmptyAcquireWaitTime()
	}
	return u
}
