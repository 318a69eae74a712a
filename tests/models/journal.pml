/* The journal and the operation queue: a push is stored at once, queued as an operation, or journalled on the server's
   disk, and the order in which its producer sent them is kept.

   One producer, one partition, one server that may crash, one database that may be away. A journalled push is on disk
   when it is synced; a crash takes the rest. The replay stores the oldest record, then marks it: a crash between the
   two has it stored again, which the transactionId makes harmless. The producer sends the next push only after an
   answer, and repeats one that was not answered.

   BROKEN=1: a journalled push is answered before it is synced.
   BROKEN=2: a push that the database takes does not wait behind those in the journal.
   BROKEN=3: a push does not look for operations of its partition. */

#define PUSHES 3
#define NONE 255

byte stored[PUSHES];        /* in the order of their offsets */
byte count = 0;
byte queued[PUSHES];        /* operations, oldest first; in the database */
byte waiting = 0;
byte journal[PUSHES];       /* on disk or on its way there */
byte written = 0;
byte synced = 0;
byte replayed = 0;          /* marked */
bool away = false;
byte outages = 0, crashes = 0;
byte answered = 0;          /* pushes 0 … answered - 1 */
byte i;

inline has(number, found) {
    found = false;
    i = 0;
    do
    :: i < count -> if :: stored[i] == number -> found = true :: else -> skip fi; i = i + 1
    :: else -> break
    od;
    i = 0;
    do
    :: i < waiting -> if :: queued[i] == number -> found = true :: else -> skip fi; i = i + 1
    :: else -> break
    od
}

/* queen.push under the lock of the head: a duplicate, an operation behind others, or a message */
inline store(number, later) {
    d_step {
        has(number, known);
        if
        :: known -> skip
#if BROKEN == 3
        :: !known && later -> queued[waiting] = number; waiting = waiting + 1
        :: !known && !later -> stored[count] = number; count = count + 1
#else
        :: !known && (later || waiting > 0) -> queued[waiting] = number; waiting = waiting + 1
        :: !known && !later && waiting == 0 -> stored[count] = number; count = count + 1
#endif
        fi
    }
}

active proctype producer() {
    bool known;
    byte crash;
    do
    :: answered < PUSHES ->
        if
        /* stored now, or deferred because of overload */
#if BROKEN == 2
        :: atomic { !away -> if :: store(answered, false) :: store(answered, true) fi };
#else
        :: atomic { !away && replayed == written -> if :: store(answered, false) :: store(answered, true) fi };
#endif
            answered = answered + 1
        /* journalled: the database is away, or older ones of the partition are in the journal */
        :: atomic { (away || replayed < written) && written < PUSHES ->
                journal[written] = answered; written = written + 1; crash = crashes };
#if BROKEN != 1
            /* fsync, unless the process is gone meanwhile */
            if
            :: atomic { crashes == crash -> synced = written }
            :: crashes != crash -> skip
            fi;
            if
            :: atomic { crashes == crash -> answered = answered + 1 }
            :: crashes != crash -> skip
            fi
#else
            answered = answered + 1;
            if :: atomic { crashes == crash -> synced = written } :: crashes != crash -> skip fi
#endif
        fi
    :: else -> break
    od
}

active proctype replay() {
    bool known;
    byte crash;
    do
    :: atomic { !away && replayed < synced -> store(journal[replayed], false); crash = crashes };
        if
        :: atomic { crashes == crash && replayed < synced -> replayed = replayed + 1 }
        :: crashes != crash -> skip
        fi
    :: atomic { answered == PUSHES && replayed == synced && synced == written -> break }
    od
}

active proctype worker() {
    do
    :: d_step { !away && waiting > 0 ->
            stored[count] = queued[0]; count = count + 1; waiting = waiting - 1;
            i = 0;
            do
            :: i < waiting -> queued[i] = queued[i + 1]; i = i + 1
            :: else -> break
            od
        }
    :: atomic { answered == PUSHES && waiting == 0 && replayed == written -> break }
    od
}

active proctype trouble() {
    do
    :: atomic { outages < 2 && !away -> away = true; outages = outages + 1 }
    :: atomic { away -> away = false }
    :: d_step { crashes < 1 -> crashes = crashes + 1; written = synced }
    :: atomic { answered == PUSHES && !away -> break }
    od
}

active proctype judge() {
    timeout;
    d_step {
        assert(answered == PUSHES && count == PUSHES);
        i = 0;
        do
        :: i < PUSHES -> assert(stored[i] == i); i = i + 1
        :: else -> break
        od
    }
}
