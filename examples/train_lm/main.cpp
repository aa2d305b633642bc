#include "options.hpp"
#include "trainer.hpp"
#include "linalg.hpp"
#include <cstdio>
using namespace train_lm;
int main(int argc,char**argv){auto p=parse_options(argc,argv);if(!p.error.empty()){puts(p.error.c_str());return 2;}
use_one_blas_thread();Text text(p.options.text);RunRequest r;r.split={p.options.sequence_ranks,p.options.data_groups,p.options.group_stride};r.sample=true;r.drop_exchange=p.options.drop_exchange;
auto res=train(p.options,text,r,[](int s,const StepRecord&c){printf("%d %.9f %.3fs |g| %.3f l1*lr %.3f\n",s,c.loss,c.seconds,c.norm,c.norm_one*c.rate);fflush(stdout);});
printf("%.0f tok/s peak %.1f MB\n[%s]\n",res.tokens_per_second(p.options.seq_len),res.ranks[0].peak_bytes/1e6,res.sample.c_str());}
