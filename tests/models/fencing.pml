/* Fencing with partly finished leases: consumers whose leases end while they work acknowledge late, in part, and again.

   One partition with MESSAGES messages, one group. A pop gets the next BATCH unfinished messages under a new lease if
   there is no live one. A lease may end at any moment. An acknowledgement is of one message; when all that a lease has
   delivered is finished, the lease ends, and the position moves over what is finished without a gap.

   BROKEN=1: an acknowledgement is taken if any lease is alive, not only that of its sender.
   BROKEN=2: the last acknowledgement moves the position to the end of what was delivered, finished or not. */

#define MESSAGES 3
#define BATCH 2
#define CONSUMERS 2
#define POPS 4

byte lease = 0;             /* the live one; 0 if there is none */
byte leases = 0;            /* how many there have been */
byte first = 0;             /* what the live lease has delivered */
byte behind = 0;
byte position = 0;
bool done[MESSAGES];
bool under_lease[MESSAGES]; /* acknowledged by its consumer, who held the live lease */

inline settle() {
    d_step {
        do
        :: position < MESSAGES && done[position] -> position = position + 1
        :: else -> break
        od
    }
}

active [CONSUMERS] proctype consumer() {
    byte mine, from, to, next;
    do
    :: atomic { lease == 0 && leases < POPS && position < MESSAGES ->
            leases = leases + 1; lease = leases; mine = leases;
            from = position;
            to = (position + BATCH > MESSAGES -> MESSAGES : position + BATCH);
            first = from; behind = to; next = from
        };
        do
        /* it acknowledges the next one, or passes it over, or dies */
        :: next < to ->
            atomic {
                if
#if BROKEN == 1
                :: lease != 0 && !done[next] ->
#else
                :: lease == mine && !done[next] ->
#endif
                    assert(lease == mine);
                    done[next] = true; under_lease[next] = true;
#if BROKEN == 2
                    if
                    :: next == to - 1 -> position = to; lease = 0
                    :: else -> skip
                    fi
#else
                    settle();
                    if
                    :: position >= behind -> lease = 0
                    :: else -> skip
                    fi
#endif
                :: else -> skip
                fi;
                next = next + 1
            }
        :: next < to -> next = next + 1
        :: break
        od;
        mine = 0
    :: atomic { position == MESSAGES || leases == POPS -> break }
    od
}

active proctype time() {
    do
    :: atomic { lease != 0 -> lease = 0 }
    :: atomic { position == MESSAGES || (leases == POPS && lease == 0) -> break }
    od
}

active proctype judge() {
    byte i;
    timeout;
    d_step {
        i = 0;
        do
        /* Whatever is before the position was finished under a live lease. */
        :: i < position -> assert(done[i] && under_lease[i]); i = i + 1
        :: else -> break
        od
    }
}
